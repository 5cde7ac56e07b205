"""`rlhf serve`: the champion behind HTTP."""

import argparse
import time

from rlcore.cli.stopping import Stopped
from rlcore.exit_codes import DONE
from tasks.commands.registry import opened_registry
from tasks.commands.running import stoppable
from tasks.records.signals import ignore_signals
from tasks.service.servers import CHAT_PORT, HOST, running


def serve(parser: argparse.ArgumentParser) -> None:
    """Answer chat requests over HTTP with the champion."""
    parser.description = _serve.__doc__
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--alias", metavar="ALIAS", help="another alias than champion, such as challenger")
    which.add_argument("--version", metavar="VERSION", help="number of a version of rlhf-policy")
    parser.add_argument("--host", default=HOST, help=f"where to listen (default: {HOST}; 0.0.0.0 is every network)")
    parser.add_argument(
        "--port", type=int, default=CHAT_PORT, help=f"(default: {CHAT_PORT}, or a free one where it is taken)"
    )
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    """Serve the champion until Ctrl-C. Its checkpoint is hashed first; a champion of later takes a new start.

    A request is a POST to /invocations: {"messages": [{"role": "user", "content": "..."}]}, optionally with max_tokens,
    temperature and seed. The answer is a chat completion.
    """
    with opened_registry() as (client, root):
        from tasks.registry.store import CHAMPION, find_version
        from tasks.service.model_server import chat_server, model_folder

        version = find_version(client, arguments.version or arguments.alias or CHAMPION)
        model = model_folder(client, version, root)
    try:
        with stoppable(), running(chat_server(model, root, arguments.port, arguments.host)) as server:
            server.wait()
            print(f"rlhf-policy version {version.version}: {server.url}/invocations", flush=True)
            request = '{"messages": [{"role": "user", "content": "What is 2 plus 3?"}]}'
            print(f"try: curl {server.url}/invocations -H 'Content-Type: application/json' -d '{request}'", flush=True)
            print("Ctrl-C stops it.", flush=True)
            while True:
                time.sleep(0.5)
                server.check()
    except Stopped:
        ignore_signals()
    return DONE
