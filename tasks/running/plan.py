"""What a pipeline run would do: which stages would run and why, for how long, with how much memory and disk.

Read from `dvc.yaml`, `dvc.lock`, the DVC cache and the traces of earlier runs. Nothing is started, nothing is written,
and no server is asked, so the champion is the one of the last run.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.records import artifacts, folders
from tasks.records.cache import Execution, cache_folder, cached, is_whole, locked_execution, part_md5, remembered
from tasks.records.definition import Definition, definition
from tasks.records.parameters import Resolution, differences
from tasks.records.processes import PEAK_GPU_MEMORY, PEAK_MEMORY
from tasks.records.stage import STAGE_SECONDS
from tasks.records.trace import last_values

Action = Literal["up to date", "from the cache", "runs", "skipped"]

WORK: dict[str, tuple[str, ...]] = {
    "sft": ("max_steps", "batch_size"),
    "reward": ("num_epochs",),
    "ppo": ("num_iterations", "batch_size"),
    "grpo": ("num_iterations", "batch_size"),
    "dpo": ("num_epochs",),
    "orpo": ("num_epochs",),
    "evaluate": ("samples_per_prompt",),
}
"""Settings that the time of a section is proportional to."""

PATHS = 3
"""Most paths named in one reason."""


@dataclass(frozen=True)
class StagePlan:
    """What would happen to one stage.

    Attributes:
        stage: its name.
        action: what the pipeline would do with it.
        reasons: why.
        seconds: how long its process would take, by the last like it; None where none is known. 0 unless it runs.
        memory_gib, gpu_memory_gib: the most that the last like it had at once; None where it is not known.
        disk_bytes: what its outputs would take in the workspace and in the cache; None where it is not known.
    """

    stage: str
    action: Action
    reasons: tuple[str, ...]
    seconds: float | None = 0.0
    memory_gib: float | None = None
    gpu_memory_gib: float | None = None
    disk_bytes: int | None = 0


@dataclass(frozen=True)
class Plan:
    """What a pipeline run would do.

    Attributes:
        stages: in their order.
        changed_parameters: what would change in params.yaml.
        free_bytes: of the disk with the checkout.
        memory_gib: of this machine.
    """

    stages: tuple[StagePlan, ...]
    changed_parameters: tuple[str, ...]
    free_bytes: int
    memory_gib: float

    def running(self) -> list[StagePlan]:
        """The stages whose process would run."""
        return [stage for stage in self.stages if stage.action == "runs"]

    def as_values(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return asdict(self)


def plan(root: Path, resolution: Resolution, force: Sequence[str] = ()) -> Plan:
    """What `rlhf pipeline run` would do with these parameters.

    Args:
        root: the checkout.
        resolution: the parameters of the run.
        force: stages to run although nothing changed.

    Raises:
        DataError: data or code that a stage needs are missing.
    """
    planner = _Planner(root, resolution, frozenset(force))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Plan(
        tuple(planner.stage(stage) for stage in artifacts.STAGES),
        tuple(map(str, resolution.changes)),
        shutil.disk_usage(root).free,
        memory,
    )


class _Planner:
    """Goes through the stages in their order, and knows what the earlier ones would leave."""

    def __init__(self, root: Path, resolution: Resolution, force: frozenset[str]):
        self.root = root
        self.resolution = resolution
        self.force = force
        self.cache = cache_folder(root)
        self._made: dict[Path, str | None] = {}
        self._maker: dict[Path, str] = {}

    def stage(self, name: str) -> StagePlan:
        """Plan the next stage."""
        parameters = self.resolution.parameters
        if name == "demo_data" and Path(parameters.validate.source) != artifacts.RAW:
            return StagePlan(name, "skipped", ("the data are your own",))
        defined = definition(name, self.root, self.resolution.values)
        deps, waiting = self._dependencies(defined)
        locked = locked_execution(name, self.root)
        known = list(remembered(self.cache, defined.cmd))
        matching = [each for each in (locked, *known) if each is not None and _is(each, defined, deps)]
        reasons = self._reasons_to_run(name, waiting)
        if not reasons and matching:
            return self._done(name, locked, matching)
        reasons = reasons or tuple(_differences(locked, defined, deps, name))
        self._leave(name, dict.fromkeys(defined.outs))
        return self._estimate(name, defined, reasons, [each for each in (locked, *known) if each is not None])

    def _dependencies(self, defined: Definition) -> tuple[dict[str, str], list[str]]:
        """The md5 of each dependency that is known, and the stages that those wait for that are not."""
        deps, waiting = {}, []
        for path in defined.deps:
            out = next((out for out in self._made if Path(path).is_relative_to(out)), None)
            if out is None:
                deps[path] = self._content(path)
            elif (md5 := self._made[out]) is None:
                waiting.append(self._maker[out])
            elif Path(path) == out:
                deps[path] = md5
            else:
                deps[path] = part_md5(self.cache, md5, Path(path).relative_to(out).as_posix()) or ""
        return deps, sorted(set(waiting), key=artifacts.STAGES.index)

    def _content(self, path: str) -> str:
        if Path(path) == artifacts.CHAMPION_DIR and not (self.root / path).exists():
            return artifacts.NO_CHAMPION_MD5
        return artifacts.content_md5(self.root / path)

    def _reasons_to_run(self, name: str, waiting: Sequence[str]) -> tuple[str, ...]:
        if name in self.force:
            return ("it is forced",)
        used = folders.named_folders(self.resolution.parameters.of_stage(name), self.root)
        if folders.have_changed(name, used, self.root):
            return (f"changed: {', '.join(used)}",)
        return tuple(f"{stage} runs before it" for stage in waiting)

    def _done(self, name: str, locked: Execution | None, matching: Sequence[Execution]) -> StagePlan:
        """A stage that need not run: its outputs are there as it made them, or the cache has them."""
        whole = [each for each in matching if all(is_whole(self.cache, md5) for md5 in each.outs.values())]
        if matching[0] is locked and all(self._lies_at(path, md5) for path, md5 in locked.outs.items()):
            self._leave(name, locked.outs)
            return StagePlan(name, "up to date", ())
        if not whole:
            outs = matching[0].outs
            self._leave(name, dict.fromkeys(outs))
            reason = "the cache lost its outputs; `dvc pull --run-cache` may bring them back"
            return self._estimate(name, None, (reason,), matching)
        self._leave(name, whole[0].outs)
        return StagePlan(name, "from the cache", (), disk_bytes=sum(whole[0].sizes.values()))

    def _lies_at(self, path: str, md5: str) -> bool:
        """Whether an output is in the workspace, and still what the stage made."""
        return (self.root / path).exists() and artifacts.content_md5(self.root / path) == md5

    def _leave(self, name: str, outs: Mapping[str, str | None]) -> None:
        self._made |= {Path(path): md5 for path, md5 in outs.items()}
        self._maker |= {Path(path): name for path in outs}

    def _estimate(
        self, name: str, defined: Definition | None, reasons: tuple[str, ...], known: Sequence[Execution]
    ) -> StagePlan:
        """What the stage would take, by the last execution of the same command whose trace is kept."""
        for last in known:
            if defined is None or last.cmd == defined.cmd:
                end = self._end(name, last)
                if end is None:
                    continue
                factor = 1.0 if defined is None else _ratio(_section(defined.cmd), defined.params, last.params)
                seconds = end.get(STAGE_SECONDS)
                return StagePlan(
                    name,
                    "runs",
                    reasons,
                    None if seconds is None else seconds * factor,
                    end.get(PEAK_MEMORY),
                    end.get(PEAK_GPU_MEMORY),
                    2 * sum(last.sizes.values()),
                )
        return StagePlan(name, "runs", reasons, None, disk_bytes=None)

    def _end(self, name: str, last: Execution) -> dict[str, float] | None:
        """The last values of the trace that an execution left; None where it is lost."""
        md5 = last.outs.get(str(artifacts.TRACES[name]))
        if md5 is None or not cached(self.cache, md5).is_file():
            return None
        return last_values(artifacts.read_rows(cached(self.cache, md5)))


def _is(execution: Execution, defined: Definition, deps: Mapping[str, str]) -> bool:
    """Whether an execution is of this command with these inputs."""
    return (
        execution.cmd == defined.cmd
        and set(deps) == set(defined.deps)
        and dict(execution.deps) == dict(deps)
        and dict(execution.params) == dict(defined.params)
        and set(execution.outs) == set(defined.outs)
    )


def _differences(locked: Execution | None, defined: Definition, deps: Mapping[str, str], name: str) -> Iterator[str]:
    """Why a stage would run, by what `dvc.lock` says of it."""
    if locked is None:
        yield "it never ran here"
        return
    if locked.cmd != defined.cmd:
        yield f"command: {locked.cmd} -> {defined.cmd}"
    yield from map(str, differences(locked.params, defined.params))
    changed = [path for path in {**locked.deps, **deps} if locked.deps.get(path) != deps.get(path)]
    data = [path for path in changed if Path(path).is_relative_to(artifacts.DATA)]
    code = [path for path in changed if path not in data]
    for kind, paths in (("data", data), ("code", code)):
        if paths:
            shown = ", ".join(paths[:PATHS])
            yield f"{kind} changed: {shown}{f' and {len(paths) - PATHS} more' if len(paths) > PATHS else ''}"
    if set(locked.outs) != set(defined.outs):
        yield f"dvc.yaml names other outputs of {name}"


def _section(cmd: str) -> str:
    """The section of params.yaml that `python -m tasks.<section>` runs with."""
    return cmd.split()[-1].rpartition(".")[2]


def _ratio(section: str, new: Mapping[str, Any], old: Mapping[str, Any]) -> float:
    """How many times the work of an execution the new settings ask for."""
    ratio = 1.0
    for setting in WORK.get(section, ()):
        before, after = (values.get(section, {}).get(setting) for values in (old, new))
        if before and after:
            ratio *= after / before
    return ratio
