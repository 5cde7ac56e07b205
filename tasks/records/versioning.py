"""DVC: brings a stage up to date in a process group of its own, says what went in and out, brings versions back.

DVC itself is imported late: most calls do without.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.exit_codes import CONFIGURATION, DONE, FAILED, TRANSIENT
from tasks.records import artifacts
from tasks.records.cache import cache_with, cached, members
from tasks.records.dvc_process import end_leftover, run_dvc
from tasks.records.parameters import read_yaml
from tasks.records.wording import first_line

PUBLISHED = (str(artifacts.LOCK), str(artifacts.CHAMPION_NOTE), str(artifacts.PARAMS))
"""What a pipeline run changes in git's eyes."""

_LOG_LIMIT = 1 << 20
_KILLED = (-9, 137)
_MAY_PASS = re.compile(
    r"No space left|disk I/O error|database or disk is full|Disk quota|^ERROR: .*(Unable to acquire lock| is busy)",
    flags=re.MULTILINE,
)
"""What DVC prints where a repetition may do."""
_MADE_BY_A_STAGE = re.compile(r"already specified in stage|overlap", flags=re.IGNORECASE)


class StageFailed(RLCoreError):
    """A stage ended in a way that a repetition would not mend.

    Attributes:
        exit_code: of the stage's process.
    """

    def __init__(self, message: str, exit_code: int = FAILED):
        super().__init__(message, exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        return str(self.args[0])


class Transient(StageFailed):
    """A stage was killed, or ended by something that may pass: it can be tried again and goes on where it was."""

    def __init__(self, message: str, exit_code: int = TRANSIENT):
        super().__init__(message, exit_code)


@dataclass(frozen=True)
class StageFacts:
    """What a stage of one pipeline run used and made.

    Attributes:
        stage: name in `dvc.yaml`.
        deps, outs: path to md5, as in `dvc.lock`; a folder's md5 ends with `.dir`.
        cache_hit: DVC had the outputs already and no process of the stage ran.
        seconds: `wall`, `cpu` and `import` seconds of the stage's process; empty after a cache hit.
        metrics: the last value of each metric of the trace.
    """

    stage: str
    deps: dict[str, str]
    outs: dict[str, str]
    cache_hit: bool
    seconds: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def prepare(root: Path) -> None:
    """Make a checkout ready: DVC works without git where there is none, and a killed run's leftover processes end.

    Call it with the pipeline's lock held.

    Raises:
        ConfigError: `dvc.lock` is damaged.
    """
    _check_lock(root / artifacts.LOCK)
    end_leftover(root)
    local = root / ".dvc" / "config.local"
    no_git = not git(root, "rev-parse", "--git-dir")
    text = local.read_text(encoding="utf-8") if local.exists() else ""
    without = re.sub(r"^\[core\]\n\s*no_scm = true\n", "", text, flags=re.MULTILINE)
    wanted = ("[core]\n    no_scm = true\n" if no_git else "") + without
    if wanted != text:
        artifacts.write_text(local, wanted)


def reproduce(
    stage: str,
    *,
    root: Path,
    environment: Mapping[str, str],
    force: bool = False,
    while_running: Callable[[], None] = lambda: None,
) -> None:
    """Bring one stage up to date: exactly `dvc repro --single-item <stage>`. Its output goes to the stage's log file.

    Args:
        environment: of the process.
        force: run the stage although nothing changed.
        while_running: called every fifth of a second.

    Raises:
        Transient: the stage was killed or met something that may pass.
        StageFailed: anything else.
    """
    log = root / artifacts.log_file(stage)
    log.parent.mkdir(parents=True, exist_ok=True)
    for stale in (artifacts.exit_file(stage), artifacts.running_file(stage)):
        (root / stale).unlink(missing_ok=True)
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.unlink()
    arguments = ["repro", "--single-item", *(["--force"] if force else []), stage]
    with log.open("ab") as output:
        output.write(f"\n== {time.strftime('%Y-%m-%d %H:%M:%S')} dvc {' '.join(arguments)}\n".encode())
        output.flush()
        status, said = run_dvc(arguments, root, environment, output, while_running)
    if status != DONE:
        raise _failure(stage, said, _exit_note(root, stage))


class Remote(NamedTuple):
    """Where DVC copies to: its name and its address, a path or a URL."""

    name: str
    url: str


def default_remote(root: Path) -> Remote | None:
    """The remote that DVC takes where none is named; None where there is none.

    Raises:
        ConfigError: DVC does not take its settings.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            name = repo.config["core"].get("remote")
            return Remote(name, str(repo.config["remote"].get(name, {}).get("url", ""))) if name else None
    except DvcException as error:
        reason = first_line(str(error))
        raise ConfigError(f"DVC's settings: {reason}. Mend .dvc/config or .dvc/config.local.") from None


def push(root: Path, *, environment: Mapping[str, str], while_running: Callable[[], None] = lambda: None) -> bool:
    """Copy to the default remote what it lacks, run cache included: `dvc push --run-cache`.

    What an interrupted push has copied stays there. The output goes to a log file of its own.

    Args:
        root: the checkout.
        environment: of the process.
        while_running: called every fifth of a second.

    Returns:
        False where no default remote is configured.

    Raises:
        Transient: the remote did not take it.
    """
    if default_remote(root) is None:
        return False
    log = root / artifacts.log_file("push")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        status, said = run_dvc(["push", "--run-cache"], root, environment, output, while_running)
    if status != DONE:
        errors = re.findall(r"^ERROR: (.*)", said, flags=re.MULTILINE)
        raise Transient(f"{errors[0] if errors else f'exit status {status}'}. More in {artifacts.log_file('push')}.")
    return True


def restart(stage: str, root: Path) -> None:
    """Let the next attempt of a stage begin at its beginning, not where an interrupted one was."""
    with suppress(FileNotFoundError):
        shutil.rmtree(root / artifacts.scratch(stage))


def facts(stage: str, root: Path) -> StageFacts:
    """What `dvc.lock` and the stage's process say about the last reproduction.

    Raises:
        DataError: `dvc.lock` does not know the stage.
    """
    locked = read_yaml(root / artifacts.LOCK).get("stages", {}).get(stage)
    if locked is None:
        raise DataError(f"{artifacts.LOCK}: no stage {stage!r}. Run the pipeline, or `dvc repro {stage}`.")
    note = _exit_note(root, stage)
    seconds = {name: note[f"{name}_seconds"] for name in ("wall", "cpu", "import")} if note else {}
    deps, outs = (
        {entry["path"]: entry["md5"] for entry in locked.get(kind, []) if "md5" in entry} for kind in ("deps", "outs")
    )
    return StageFacts(stage, deps, outs, cache_hit=note is None, seconds=seconds)


def materialise(md5: str, path: Path, root: Path) -> None:
    """Put a version of a file or folder at a path, from the cache or else from the remote.

    Args:
        md5: as in `dvc.lock`.
        path: relative to the checkout; what lies there is replaced.

    Raises:
        DataError: neither cache nor remote has the version.
    """
    target = root / path
    if target.exists() and artifacts.content_md5(target) == md5:
        return
    cache = cache_with(md5, root)
    partial = target.with_name(f"{target.name}.partial")
    _remove(partial)
    for name, member in members(cache, md5):
        source = cached(cache, member)
        if not source.is_file():
            raise DataError(f"Version {md5} of {path} is incomplete: neither cache nor remote has {name or member}.")
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, partial / name if name else partial)
    if artifacts.content_md5(partial) != md5:
        _remove(partial)
        raise DataError(f"Version {md5} of {path} is damaged in the DVC cache. Run `dvc pull`, or train it again.")
    _remove(target)
    partial.replace(target)


def verify_cached(md5: str, root: Path) -> None:
    """Hash a version in the cache again, after bringing it from the remote if need be.

    Raises:
        DataError: neither cache nor remote has it whole, or its content is not what its name says.
    """
    cache = cache_with(md5, root)
    # The listing of a folder is a file of the cache too, named by its own md5.
    for name, member in [(md5, md5), *members(cache, md5)]:
        file = cached(cache, member)
        if not file.is_file() or artifacts.content_md5(file) != member.removesuffix(".dir"):
            raise DataError(
                f"Version {md5} is damaged in the DVC cache: {name or md5} is missing or has another content. "
                f"Delete {file} and run `dvc pull`, or train it again."
            )


def place_champion(md5: str | None, root: Path) -> None:
    """Put the champion's checkpoint where `evaluate` looks for it, or a marker that there is none.

    No stage makes it, so DVC learns of it by a note beside it. With that a clone that pulls has the champion too.
    """
    if md5 is not None:
        materialise(md5, artifacts.CHAMPION_DIR, root)
    elif not (root / artifacts.NO_CHAMPION).exists():
        _remove(root / artifacts.CHAMPION_DIR)
        artifacts.write_text(root / artifacts.NO_CHAMPION, "")
    keep(artifacts.CHAMPION_DIR, md5 or artifacts.content_md5(root / artifacts.CHAMPION_DIR), root)


def keep(path: Path, md5: str, root: Path) -> None:
    """Let DVC keep a folder that no stage makes: `dvc add`, unless its note names this content already."""
    note = root / f"{path}.dvc"
    before = note.read_text(encoding="utf-8", errors="replace") if note.exists() else None
    if before is not None:
        if f"md5: {md5}\n" in before:
            return
        note.unlink()
    log = root / artifacts.log_file("add")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        status, said = run_dvc(["add", str(path)], root, os.environ, output)
    if status != DONE:
        if before is not None:
            artifacts.write_text(note, before)
        reason = next(iter(re.findall(r"^ERROR: (.*)", said, flags=re.MULTILINE)), first_line(said)).rstrip(".")
        if _MADE_BY_A_STAGE.search(said):
            raise ConfigError(f"{path} is made by a stage, and kept with it: {reason}. Choose another folder.")
        raise Transient(f"dvc add {path}: {reason}")


def uncommitted(root: Path, names: Sequence[str] = PUBLISHED) -> list[str]:
    """Which of these files git shows as changed or new; empty without git.

    Args:
        root: the checkout.
        names: paths relative to it; by default what says which data and models belong to the code.
    """
    said = git(root, "status", "--porcelain", "--untracked-files=all", "--", *names)
    return [line[3:] for line in said.splitlines()]


def commit_of(root: Path) -> str | None:
    """The commit that is checked out; None without git or before the first commit."""
    return git(root, "rev-parse", "--verify", "--quiet", "HEAD").strip() or None


def noted_in_git(root: Path) -> set[str]:
    """The md5 of everything that `dvc add` ever noted in a commit; empty without git."""
    said = git(root, "log", "--all", "--patch", "--format=", "--", "*.dvc")
    return set(re.findall(r"^\+[\s-]*md5: (\w{32}(?:\.dir)?)$", said, flags=re.MULTILINE))


def git(root: Path, *arguments: str) -> str:
    """What git prints; nothing without git, or where it refuses."""
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False).stdout


def _check_lock(path: Path) -> None:
    """DVC's own error for a damaged `dvc.lock` does not say how to mend it."""
    if not path.exists():
        return
    try:
        stages = read_yaml(path).get("stages", {})
        fault = None if isinstance(stages, Mapping) else f"`stages` is {type(stages).__name__}, expected a mapping"
    except ConfigError as error:
        fault = str(error).removeprefix(f"{path}: ").split(". ")[0].rstrip(".")
    if fault is not None:
        raise ConfigError(f"{artifacts.LOCK}: {fault}. Restore it with `git checkout {artifacts.LOCK}`, or delete it.")


def _exit_note(root: Path, stage: str) -> dict[str, Any] | None:
    path = root / artifacts.exit_file(stage)
    return dict(artifacts.read_json(path)) if path.exists() else None


def _failure(stage: str, said: str, note: Mapping[str, Any] | None) -> StageFailed:
    """What a failed reproduction means: by the stage's own note, else by what DVC printed."""
    log = artifacts.log_file(stage)
    if note is not None and note["exit_code"] != DONE:
        kind = Transient if note["exit_code"] == TRANSIENT else StageFailed
        return kind(f"{stage}: {note['error']}", note["exit_code"])
    errors = re.findall(r"^ERROR: (.*)", said, flags=re.MULTILINE)
    reason = errors[0] if errors else (said.strip().splitlines() or ["no output"])[-1]
    status = re.search(r"exited with (-?\d+)", reason)
    if status is None and _MAY_PASS.search(said):
        return Transient(f"{stage}: DVC says: {reason}")
    if status is None:
        return StageFailed(f"{stage}: DVC says: {reason} More in {log}.", CONFIGURATION)
    if int(status[1]) in _KILLED:
        return Transient(f"{stage}: its process was killed, perhaps for want of memory. See {log}.")
    last = next((line for line in reversed(said.splitlines()) if re.match(r"\w*(Error|Exception)\b", line)), "")
    return StageFailed(f"{stage}: could not start. {last} The stack trace is in {log}.".replace("  ", " "))


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
