"""`rlhf ui`: MLflow and Prefect in the browser."""

import argparse
import os
import time
from contextlib import ExitStack

from rlcore.cli.stopping import Stopped
from rlcore.exit_codes import DONE
from tasks.commands.running import enter_checkout, stoppable
from tasks.records.reachable import is_address
from tasks.records.signals import ignore_signals
from tasks.service.servers import mlflow_ui, prefect_ui, running
from tasks.service.services import MLFLOW, PREFECT, Service


def ui(parser: argparse.ArgumentParser) -> None:
    """Show runs, traces and the registry in the browser."""
    parser.description = _show_ui.__doc__
    parser.set_defaults(run=_show_ui)


def _show_ui(arguments: argparse.Namespace) -> int:
    """Serve MLflow and Prefect on the state of this checkout until Ctrl-C.

    A server of the user's, or of `rlhf up`, is named instead.
    """
    root = enter_checkout()
    remote = {"MLflow": os.environ["MLFLOW_TRACKING_URI"], "Prefect": os.environ.get("PREFECT_API_URL", "")}
    remote |= {kind.title: service.url for kind in (MLFLOW, PREFECT) if (service := Service(kind, root)).is_up()}
    start = {"MLflow": mlflow_ui, "Prefect": prefect_ui}
    for name in list(start):
        if is_address(remote[name]):
            print(f"{name}: {remote[name]}", flush=True)
            del start[name]
    try:
        with stoppable(), ExitStack() as stack:
            servers = {name: stack.enter_context(running(begin(root))) for name, begin in start.items()}
            for name, server in servers.items():
                server.wait()
                print(f"{name}: {server.url}", flush=True)
            if servers:
                print("Ctrl-C stops what was started here.", flush=True)
            while servers:
                time.sleep(0.5)
                for server in servers.values():
                    server.check()
    except Stopped:
        ignore_signals()
    return DONE
