"""What `rlhf up` keeps standing for a checkout: Prefect, MLflow, a worker and the deployments; and how it ends."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tasks.records import artifacts
from tasks.records.processes import end_process, owner_process
from tasks.records.reachable import answers, is_address
from tasks.records.versioning import end_leftover
from tasks.service.servers import HOST, ServerFailed, page_settings, until
from tasks.service.services import KINDS, MLFLOW, PREFECT, WORKER, Kind, Service, services_held, worker_name

CLIENT_FILE = Path("prefect.toml")
"""Tells Prefect's own command line, in the checkout, which server to use."""
_MARK = "# Written by `rlhf up`, removed by `rlhf down`.\n"
_ADDRESS = {PREFECT: "PREFECT_API_URL", MLFLOW: "MLFLOW_TRACKING_URI"}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Standing:
    """What stands.

    Attributes:
        urls: title of a server to its address for people.
        started: titles of what did not run before.
        deployments: `<flow>/<deployment>`.
        export: what Prefect's command line needs in the environment; empty where it finds the server by itself.
    """

    urls: dict[str, str]
    started: tuple[str, ...]
    deployments: tuple[str, ...]
    export: str


def bring_up(root: Path, say: Say) -> Standing:
    """Start what does not run, and bring the server's pool, limits and deployments up to date.

    A server that PREFECT_API_URL or MLFLOW_TRACKING_URI names is used, and none is started in its place.

    Args:
        root: the checkout.
        say: is told what happens.

    Raises:
        ServerFailed: something did not start, or a server that the environment names does not answer.
    """
    with services_held(root, lambda owner: say(f"waiting for {owner}")):
        named = {kind: os.environ[name] for kind, name in _ADDRESS.items() if is_address(os.environ.get(name, ""))}
        for kind, address in named.items():
            if not answers(address + ("/health" if kind is PREFECT else kind.health)):
                raise ServerFailed(f"{kind.title} at {address} does not answer. Start it, or unset {_ADDRESS[kind]}.")
        ours = [kind for kind in _ADDRESS if kind not in named]
        started = [kind for kind in ours if _start(kind, root, say, **(_server_settings() if kind is PREFECT else {}))]
        api = named.get(PREFECT) or f"{Service(PREFECT, root).url}/api"
        os.environ["PREFECT_API_URL"] = api
        deployments, worker_started = _deploy(root, api, say, lost=PREFECT in ours)
        if MLFLOW in ours:
            Service(MLFLOW, root).wait()
        export = "" if PREFECT in named or _tell_clients(root, api) else f"export PREFECT_API_URL={api}"
    urls = {kind.title: named.get(kind) or Service(kind, root).url for kind in _ADDRESS}
    urls[PREFECT.title] = api.removesuffix("/api")
    titles = [kind.title for kind in (*started, *([WORKER] if worker_started else []))]
    return Standing(urls, tuple(titles), tuple(deployments), export)


def bring_down(root: Path, say: Say) -> list[str]:
    """Cancel the run in progress, its state saved, and end worker and servers; the titles of what ran.

    Args:
        root: the checkout.
        say: is told what happens.
    """
    with services_held(root, lambda owner: say(f"waiting for {owner}")):
        server = Service(PREFECT, root)
        if server.is_up():
            os.environ["PREFECT_API_URL"] = f"{server.url}/api"
            from tasks.service import deployments

            if Service(WORKER, root).process:
                deployments.cancel_runs(say)
            else:
                # Nobody would hear of it.
                deployments.end_begun_runs()
        ended = [kind.title for kind in KINDS if kind is WORKER and Service(kind, root).stop()]
        if owner := owner_process(root / artifacts.RUN_LOCK):
            say(f"ending the run of process {owner}")
            end_process(owner)
        end_leftover(root)
        ended += [kind.title for kind in KINDS if kind is not WORKER and Service(kind, root).stop()]
        if _is_ours(root):
            (root / CLIENT_FILE).unlink()
    return ended


def _deploy(root: Path, api: str, say: Say, *, lost: bool) -> tuple[list[str], bool]:
    """Set up the server and start the worker; the deployments, and whether the worker was started."""
    # Loading Prefect takes as long as its server takes to start.
    from tasks.service import deployments

    if lost:
        Service(PREFECT, root).wait()
        sweep = deployments.mark_lost_runs if Service(WORKER, root).process else deployments.end_begun_runs
        for name in sweep():
            say(
                f"the run {name} lost its process or its worker: it counts as crashed, and the next run goes on from it"
            )
    names = deployments.set_up(root)
    webserver = {"PREFECT_WORKER_WEBSERVER_HOST": HOST, "PREFECT_WORKER_WEBSERVER_PORT": "{port}"}
    started = _start(WORKER, root, say, PREFECT_API_URL=api, **webserver)
    worker = Service(WORKER, root)
    worker.wait()
    until(lambda: deployments.worker_is_online(worker_name()), worker.name, worker.log, worker.check)
    return names, started


def _server_settings() -> dict[str, str]:
    """Environment of Prefect's server."""
    return {
        **page_settings(),
        # Leases on slots must outlive a server that is killed, or nobody would ever take the slots back.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # Of each schedule the next run alone is listed, not those of the hours to come.
        "PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS": "1",
        "PREFECT_SERVER_SERVICES_SCHEDULER_MIN_SCHEDULED_TIME": "PT0S",
    }


def _start(kind: Kind, root: Path, say: Say, **settings: str) -> bool:
    service = Service(kind, root)
    if not service.start(**settings):
        return False
    say(f"starting {kind.title}; its log is {service.log.relative_to(root)}")
    if kind.port and service.url != f"http://{HOST}:{kind.port}":
        say(f"port {kind.port} belongs to another process: {kind.title} listens on {service.url}")
    return True


def _tell_clients(root: Path, api: str) -> bool:
    """Write the server's address where Prefect's command line looks; not over a file of the user's."""
    if (root / CLIENT_FILE).exists() and not _is_ours(root):
        return False
    artifacts.write_text(root / CLIENT_FILE, f'{_MARK}[api]\nurl = "{api}"\n')
    return True


def _is_ours(root: Path) -> bool:
    path = root / CLIENT_FILE
    return path.exists() and path.read_text(encoding="utf-8").startswith(_MARK)
