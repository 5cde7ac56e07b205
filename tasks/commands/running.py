"""What the command groups share: entering the checkout, showing a flow that runs, stopping on a signal."""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlcore.cli.stopping import Stopped
from rlcore.errors import RLCoreError
from rlcore.exit_codes import CONFIGURATION, DONE, exit_code_of
from tasks.records import artifacts, environment
from tasks.records.folders import check_source
from tasks.records.lent_parameters import own_parameters
from tasks.records.parameters import resolve
from tasks.records.processes import process_start
from tasks.records.reachable import answers
from tasks.records.signals import ignore_signals, signals_raise
from tasks.running.progress import Checklist, LineChecklist, LiveChecklist, watched_by
from tasks.service.servers import ServerFailed, check_needed, needing, prefect_server
from tasks.service.services import prefect_url


def enter_checkout() -> Path:
    """Go to the root of the checkout around the working directory, with the defaults of its environment."""
    root = artifacts.find_root()
    os.chdir(root)
    environment.apply(root)
    return root


def checked_settings(params: str | None, sets: list[str]) -> tuple[Path, str | None]:
    """The checkout, and the parameter file by its whole path. Faults of settings show before anything starts."""
    file = Path(params).resolve() if params else None
    root = enter_checkout()
    check_source(resolve(own_parameters(root), file, sets).parameters.validate.source, root)
    return root, str(file) if file else None


def watched(run: Callable[[Checklist], Table | str], steps: Sequence[str]) -> int:
    """Show a run as a checklist and print what it returns; the exit code."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    console = Console()
    try:
        with _checklist(console, steps) as checklist, stoppable():
            result = run(checklist)
    except Stopped as stop:
        ignore_signals()
        console.print("Stopped. What is done is kept; the same command goes on from there.")
        return stop.exit_code
    except RLCoreError as error:
        console.print(Text(f"Stopped: {error}", style="red"))
        code = exit_code_of(error)
        if code == CONFIGURATION:
            console.print("What is done is kept. Change what is named above and run the command again.")
        else:
            console.print("What is done is kept; the same command goes on from there.")
        return code
    if isinstance(result, str):
        # As it is: a table in Markdown must not be wrapped.
        print(result)
    else:
        console.print(result)
    return DONE


def run_flow(root: Path, checklist: Checklist, name: str, **arguments: Any) -> dict[str, Any]:
    """Run a flow in this process, on the user's Prefect server, or that of `rlhf up`, or else on a temporary one."""
    server = None
    if url := prefect_url(root):
        if not answers(f"{url}/health"):
            raise ServerFailed(f"Prefect at {url} does not answer. Start it, or unset PREFECT_API_URL.")
        os.environ["PREFECT_API_URL"] = url
    else:
        checklist.note("starting Prefect's temporary server")
        server = prefect_server(root)
        # Registered before Prefect is imported, so that it runs after Prefect has sent its last events.
        atexit.register(server.stop)
        os.environ["PREFECT_API_URL"] = f"{server.url}/api"
        # A server of this machine that refuses a connection is gone: Prefect would try for minutes.
        os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "2")
    # The server starts while this process loads Prefect and MLflow.
    from prefect.flows import Flow, load_flow_from_entrypoint

    flow: Flow[..., dict[str, Any]] = load_flow_from_entrypoint(name, use_placeholder_flow=False)
    if server is not None:
        server.wait()
    with watched_by(checklist), needing(server):
        try:
            summary: dict[str, Any] = flow(**arguments)
        except Exception:
            # Without its server Prefect fails in many ways, all for this one reason.
            check_needed()
            raise
    seconds = time.time() - process_start()
    return {**summary, "seconds": seconds, "orchestration_seconds": seconds - summary["stage_seconds"]}


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


@contextmanager
def stoppable() -> Iterator[None]:
    """Within the block SIGINT and SIGTERM raise Stopped."""
    with signals_raise(Stopped, lambda: print("\nStopping; this takes some seconds.", file=sys.stderr)):
        yield


@contextmanager
def _checklist(console: Console, steps: Sequence[str]) -> Iterator[Checklist]:
    if console.is_terminal:
        with LiveChecklist(console, steps) as checklist:
            yield checklist
    else:
        yield LineChecklist(say, steps)
