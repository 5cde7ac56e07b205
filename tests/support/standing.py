"""A checkout that `rlhf up` keeps standing: its command lines, its runs in Prefect, and what a clean end looks like."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.records import artifacts
from tasks.records.processes import owner_process
from tasks.records.tracking import KEY_TAG
from tasks.registry.store import CHECKPOINT_TAG, POLICY_MODEL
from tasks.service.services import PREFECT, Service
from tests.support.checkout import ROOT, environment, make_checkout, processes_in, wait_until
from tests.support.runs import runs_of

PIPELINE, NIGHTLY, AUDIT = "rlhf-pipeline/rlhf-pipeline", "retraining/nightly", "promotion/audit"
TEN_STEPS = list(range(1, 11))
GPU = "GPU-of-a-script"
ENDS = ("Completed", "Failed", "Crashed", "Cancelled")
"""States in which a run of the pipeline is over."""


def flows_named(*names: str) -> FlowFilter:
    return FlowFilter(name=FlowFilterName(any_=list(names)))


TRAINS = flows_named("rlhf-pipeline", "retraining")
"""Flows that hold the checkout."""


class Standing:
    """A checkout with fake stages after `rlhf up`.

    Attributes:
        root: its folder.
    """

    def __init__(self, root: Path):
        self.root = root

    @property
    def url(self) -> str:
        """Of Prefect."""
        return Service(PREFECT, self.root).url

    @contextmanager
    def client(self) -> Iterator[SyncPrefectClient]:
        """Of its Prefect server."""
        with temporary_settings({PREFECT_API_URL: f"{self.url}/api"}), get_client(sync_client=True) as client:
            yield client

    def begin(self, *command: str, **settings: str) -> "subprocess.Popen[str]":
        """Start `python -m <command>` in the checkout, as a person would; stdout and stderr come together."""
        return subprocess.Popen(
            [sys.executable, "-m", *command], cwd=self.root, env={**_environment(self.root), **settings}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def say(self, *command: str, check: bool = True, **settings: str) -> str:
        """What `python -m <command>` prints; with `check` it has to succeed."""
        process = self.begin(*command, **settings)
        said, _ = process.communicate(timeout=500)
        assert process.returncode == 0 or not check, said
        return said

    def rlhf(self, *arguments: str, **options: Any) -> str:
        return self.say("rlcore.cli.main", *arguments, **options)

    def prefect(self, *arguments: str, **options: Any) -> str:
        """Prefect's own command line, which is told nothing about a server."""
        return self.say("prefect", *arguments, **options)

    def run(self, deployment: str = PIPELINE, *arguments: str) -> str:
        """A run by the documented command, to its end."""
        return self.prefect("deployment", "run", deployment, "--watch", *arguments)

    def start(self, deployment: str = PIPELINE, **parameters: Any) -> UUID:
        """Ask the server for a run; its id."""
        with self.client() as client:
            found = client.read_deployment_by_name(deployment)
            return client.create_flow_run_from_deployment(found.id, parameters=parameters).id

    def state(self, run: UUID) -> str:
        """Name of the state of a run."""
        with self.client() as client:
            state = client.read_flow_run(run).state
        assert state is not None
        return state.name

    def wait_for(self, run: UUID, *states: str) -> None:
        wait_until(lambda: self.state(run) in states, 300)

    def flow_runs(self) -> list[FlowRun]:
        """Runs of the flows that train, oldest first, without those that are still to come."""
        return [run for run in self.listed(TRAINS) if run.state is not None and not run.state.is_scheduled()]

    def listed(self, flows: FlowFilter) -> list[FlowRun]:
        """What Prefect's page lists, oldest first."""
        with self.client() as client:
            return client.read_flow_runs(flow_filter=flows, sort=FlowRunSort.EXPECTED_START_TIME_ASC)

    def states(self) -> list[str]:
        return [run.state.name for run in self.flow_runs() if run.state is not None]

    def active_slots(self) -> dict[str, int]:
        """Taken slots of each limit on the server that has any."""
        with self.client() as client:
            limits = client.read_global_concurrency_limits(limit=50)
        return {limit.name: limit.active_slots for limit in limits if limit.active_slots}

    def cache_hits(self) -> list[str]:
        """Stages that the newest pipeline run took from the cache; each stage has its whole trace, once."""
        runs = runs_of(self.root)
        pipeline = runs.pipelines()[-1]
        assert pipeline.info.status == "FINISHED"
        own = pipeline.data.params["validate.source"] != str(artifacts.RAW)
        stages = {
            stage: runs.stage(pipeline, stage) for stage in artifacts.STAGES if not (own and stage == "demo_data")
        }
        assert all(run.info.status == "FINISHED" for run in stages.values())
        assert all(runs.steps(run, "fake/loss") == TEN_STEPS for run in stages.values())
        return [stage for stage, run in stages.items() if run.data.tags["cache_hit"] == "true"]

    def log(self, stage: str) -> str:
        return (self.root / artifacts.log_file(stage)).read_text()

    def assert_in_order(self) -> None:
        """Nothing is open, held or there twice: MLflow runs, versions, runs and slots in Prefect, locks, processes."""
        runs = runs_of(self.root)
        assert not [run for run in runs.runs if run.info.status == "RUNNING"]
        keys = [run.data.tags[KEY_TAG] for run in runs.runs if not run.data.tags[KEY_TAG].endswith("/replaced")]
        assert len(keys) == len(set(keys))
        versions = [version.tags for version in runs.client.search_model_versions(f"name = '{POLICY_MODEL}'")]
        for tag in (KEY_TAG, CHECKPOINT_TAG):
            assert len({tags[tag] for tags in versions}) == len(versions)
        with self.client() as client:
            task_runs = client.read_task_runs(flow_filter=TRAINS)
        assert all(run.state is not None and run.state.is_final() for run in (*self.flow_runs(), *task_runs))
        assert self.active_slots() == {}
        assert owner_process(self.root / artifacts.RUN_LOCK) is None
        assert all(owner_process(lock) is None for lock in (self.root / "tmp").glob("rlhf-*.lock"))
        left = {"unfinished.json", "running-group.json"} & {
            path.name for path in (self.root / artifacts.STATE).iterdir()
        }
        assert not left
        assert self.trainers() == []

    def trainers(self) -> list[str]:
        """Command lines of DVC and of the stages that it runs."""
        return [line for line in processes_in(self.root) if "fake_stages.py" in line or "-m dvc" in line]

    def visible_gpus(self) -> set[str]:
        """What CUDA_VISIBLE_DEVICES says to the stages that run."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (folder / "cwd").resolve() == self.root and b"fake_stages.py" in (folder / "cmdline").read_bytes():
                    found |= {
                        entry.decode().partition("=")[2]
                        for entry in (folder / "environ").read_bytes().split(b"\0")
                        if entry.startswith(b"CUDA_VISIBLE_DEVICES=")
                    }
        return found

    def release(self) -> None:
        """Let the stage that waits go on."""
        (self.root / "release").touch()

    @contextmanager
    def gpu(self) -> Iterator[None]:
        """Within the block the machine has one GPU: a script says so."""
        tool = self.root / "bin" / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\necho '0, {GPU}'\n")
        tool.chmod(0o755)
        try:
            yield
        finally:
            tool.unlink()


@contextmanager
def standing_checkout(folder: Path) -> Iterator[Standing]:
    """A checkout after `rlhf up`, whose registrations are real; after the block nothing of it runs."""
    root = make_checkout(folder)
    # Weights that are no model cannot be packed into one: versions point to DVC.
    (root / "params.yaml").write_text(re.sub(r"copy_limit: \d+", "copy_limit: 0", (root / "params.yaml").read_text()))
    shutil.copytree(ROOT / "flows", root / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "infra").mkdir()
    shutil.copy(ROOT / "infra" / "prefect.yaml", root / "infra")
    for name in ("bin", "tmp"):
        (root / name).mkdir()
    standing = Standing(root)
    try:
        standing.rlhf("up")
        yield standing
    finally:
        said = standing.rlhf("down", check=False)
    assert processes_in(root) == [], said


def _environment(root: Path) -> dict[str, str]:
    tools = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Every second instead of every ten: a test starts many runs.
    return {**environment(root), "PATH": tools, "TMPDIR": str(root / "tmp"), "PREFECT_WORKER_QUERY_SECONDS": "1"}
