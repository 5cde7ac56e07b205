"""The command groups of `rlhf` that need a checkout: `pipeline` and `ui`."""

import argparse
import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlcore.cli.main import exit_code_of
from rlcore.errors import RLCoreError
from tasks.progress import STEPS, Checklist, LineChecklist, LiveChecklist, watched_by
from tasks.records import artifacts, environment
from tasks.records.parameters import check_seeds, resolve
from tasks.records.processes import process_start
from tasks.records.reachable import answers
from tasks.records.signals import ignore_signals, signals_raise
from tasks.report import comparison_text, terminal_table
from tasks.servers import ServerFailed, check_needed, mlflow_ui, needing, prefect_server, prefect_ui, running

PIPELINE, COMPARISON = "flows.rlhf_pipeline.rlhf_pipeline", "flows.rlhf_compare.rlhf_compare"
"""The flows as a worker names them. Tasks do not import flows."""


class Stopped(KeyboardInterrupt):
    """A signal asked the command to stop.

    Attributes:
        exit_code: 130 after SIGINT, 143 after SIGTERM.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.exit_code = 128 + number


def pipeline(parser: argparse.ArgumentParser) -> None:
    """Train, measure and register a policy; compare algorithms."""
    verbs = parser.add_subparsers(metavar="verb", required=True)
    run = verbs.add_parser("run", help="bring the whole pipeline up to date", description=_run_pipeline.__doc__)
    compare = verbs.add_parser(
        "compare", help="train with each algorithm on the same data", description=_compare.__doc__
    )
    for verb in (run, compare):
        verb.add_argument("--params", metavar="FILE", help="parameter file; its settings go over those of params.yaml")
        verb.add_argument(
            "--set", metavar="SECTION.KEY=VALUE", dest="sets", action="append", default=[],
            help="one setting; repeatable",
        )  # fmt: skip
    run.add_argument("--seed", metavar="N", type=int, help="the same as --set seed=N")
    run.add_argument(
        "--force", metavar="STAGE", action="append", default=[], choices=artifacts.STAGES,
        help="run this stage although nothing changed; repeatable",
    )  # fmt: skip
    run.set_defaults(run=_run_pipeline)
    compare.add_argument(
        "--seeds",
        metavar="N",
        type=int,
        nargs="+",
        help="each algorithm runs with each; by default the seed of params.yaml",
    )
    compare.set_defaults(run=_compare)


def ui(parser: argparse.ArgumentParser) -> None:
    """Show runs, traces and the registry in the browser."""
    parser.set_defaults(run=_show_ui)


def _run_pipeline(arguments: argparse.Namespace) -> int:
    """Run what is not done yet, record all of it, and say what came out."""
    sets = [*arguments.sets, *([f"seed={arguments.seed}"] if arguments.seed is not None else [])]
    root, params = _checked_settings(arguments.params, sets)

    def run(checklist: Checklist) -> Table:
        summary = _run_flow(root, checklist, PIPELINE, params_file=params, sets=sets, force=arguments.force)
        return terminal_table({**summary, "uncommitted": _uncommitted(root)})

    return _watched(run, STEPS)


def _compare(arguments: argparse.Namespace) -> int:
    """Train with PPO, GRPO, DPO and ORPO on the same data, and print what came out beside each other.

    Nothing is registered, and params.yaml is left as it is. What was trained before is taken from the cache.
    """
    root, params = _checked_settings(arguments.params, arguments.sets)
    if arguments.seeds is not None:
        check_seeds(arguments.seeds)

    def run(checklist: Checklist) -> str:
        settings = {"seeds": arguments.seeds, "params_file": params, "sets": arguments.sets}
        return comparison_text(_run_flow(root, checklist, COMPARISON, **settings))

    return _watched(run, STEPS[:-1])


def _checked_settings(params: str | None, sets: list[str]) -> tuple[Path, str | None]:
    """The checkout, and the parameter file by its whole path. Faults of settings show before anything starts."""
    file = Path(params).resolve() if params else None
    root = _enter_checkout()
    resolve(overrides=file, sets=sets)
    return root, str(file) if file else None


def _watched(run: Callable[[Checklist], Table | str], steps: Sequence[str]) -> int:
    """Show a run as a checklist and print what it returns; the exit code."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    console = Console()
    try:
        with _checklist(console, steps) as checklist, _stoppable():
            result = run(checklist)
    except Stopped as stop:
        ignore_signals()
        console.print("Stopped. What is done is kept; the same command goes on from there.")
        return stop.exit_code
    except RLCoreError as error:
        console.print(Text(f"Stopped: {error}", style="red"))
        console.print("What is done is kept; the same command goes on from there.")
        return exit_code_of(error)
    if isinstance(result, str):
        # As it is: a table in Markdown must not be wrapped.
        print(result)
    else:
        console.print(result)
    return 0


def _run_flow(root: Path, checklist: Checklist, name: str, **arguments: Any) -> dict[str, Any]:
    """Run a flow in this process, on the user's Prefect server or else on a temporary one."""
    server = None
    if url := os.environ.get("PREFECT_API_URL"):
        if not answers(f"{url}/health"):
            raise ServerFailed(f"Prefect at {url} does not answer. Start it, or unset PREFECT_API_URL.")
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


def _uncommitted(root: Path) -> list[str]:
    from tasks.records.versioning import uncommitted

    return uncommitted(root)


def _show_ui(arguments: argparse.Namespace) -> int:
    """Serve MLflow and Prefect on the state of this checkout until Ctrl-C; a server of the user's is named instead."""
    root = _enter_checkout()
    remote = {"MLflow": os.environ["MLFLOW_TRACKING_URI"], "Prefect": os.environ.get("PREFECT_API_URL", "")}
    start = {"MLflow": mlflow_ui, "Prefect": prefect_ui}
    for name in list(start):
        if remote[name].startswith("http"):
            print(f"{name}: {remote[name]}", flush=True)
            del start[name]
    try:
        with _stoppable(), ExitStack() as stack:
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
    return 0


def _enter_checkout() -> Path:
    root = artifacts.find_root()
    os.chdir(root)
    environment.apply(root)
    return root


@contextmanager
def _checklist(console: Console, steps: Sequence[str]) -> Iterator[Checklist]:
    if console.is_terminal:
        with LiveChecklist(console, steps) as checklist:
            yield checklist
    else:
        yield LineChecklist(lambda text: print(text, flush=True), steps)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Within the block SIGINT and SIGTERM raise Stopped."""
    with signals_raise(Stopped, lambda: print("\nStopping; this takes some seconds.", file=sys.stderr)):
        yield
