"""What a person sees while the pipeline runs: a checklist with progress, time left and the current numbers."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tasks.records.artifacts import STAGES
from tasks.records.trace import TOTAL_STEPS

STEPS = (*STAGES, "gate", "register")
"""What the checklist lists: the stages, then the flow's own two tasks."""

SHOWN: dict[str, tuple[str, ...]] = {
    "validate": ("data/dropped_count",),
    "sft": ("sft/loss", "sft/token_accuracy"),
    "reward": ("reward_model/loss", "validation/accuracy", "reward_model/accuracy"),
    "policy": (
        *("reward/score_mean", "kl/ref_sequence_mean", "response/length_mean"),
        *("dpo/loss", "dpo/accuracy", "orpo/loss", "orpo/accuracy", "validation/accuracy"),
    ),
    "evaluate": ("validation/gold", "validation/number_right"),
}
"""The numbers worth a look while a stage runs; as many as the trace has."""

LINE_SECONDS = 15.0
"""Time between two lines about a running stage where there is no terminal."""

BAR_WIDTH, TIME_WIDTH = 24, 25
"""Of the checklist's columns, in characters."""

State = Literal["waiting", "running", "cached", "done", "failed", "skipped"]
MARKS: dict[State, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "running": ("▶", "cyan"),
    "cached": ("✓", "green"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
}


@dataclass
class Step:
    """One line of the checklist."""

    name: str
    state: State = "waiting"
    detail: str = ""
    started: float = 0.0
    """Seconds since 1970."""
    seconds: float = 0.0
    """How long it took."""
    total: float = 0.0
    position: float = 0.0
    first: tuple[float, float] | None = None
    """Time and position of the first report of this attempt."""
    latest: float = 0.0
    """Time of the latest report."""
    numbers: dict[str, float] = field(default_factory=dict)

    def report(self, row: Mapping[str, Any]) -> None:
        """Take in one row of the trace. Rows from before this attempt tell the position, not the speed."""
        self.total = row.get(TOTAL_STEPS, self.total)
        self.numbers.update({name: row[name] for name in SHOWN.get(self.name, ()) if name in row})
        if set(row) <= {"step", "time", TOTAL_STEPS}:
            return
        self.position = row["step"]
        if row["time"] >= self.started:
            self.latest = row["time"]
            self.first = self.first or (row["time"], row["step"])

    def elapsed(self) -> float:
        """Seconds since it started, or what it took."""
        return time.time() - self.started if self.state == "running" else self.seconds

    def share(self) -> float | None:
        """Done part of the work, 0 to 1; None where it is unknown."""
        return min(self.position / self.total, 1.0) if self.total else None

    def seconds_left(self) -> float | None:
        """Time left at the speed of this attempt; None while that is unknown."""
        if self.first is None or not self.total or self.position <= self.first[1]:
            return None
        pace = (self.latest - self.first[0]) / (self.position - self.first[1])
        return max(pace * (self.total - self.position) - (time.time() - self.latest), 0.0)

    def numbers_text(self) -> str:
        """The current numbers in short."""
        shown = [name for name in SHOWN.get(self.name, ()) if name in self.numbers][:3]
        # A KL of -1e-7 is rounding: 0, and without a sign.
        return "  ".join(f"{name} {round(self.numbers[name], 6):z.3g}" for name in shown)


class Checklist:
    """Keeps the state of all steps. Subclasses show it."""

    def __init__(self, steps: Sequence[str] = STEPS):
        self.steps = {name: Step(name) for name in steps}
        self.title = ""

    def note(self, text: str) -> None:
        """Something that is not about one step."""
        self._show(text)

    def begin(self, title: str) -> None:
        """All steps wait again: another run of the pipeline begins."""
        self.title = title
        self.steps = {name: Step(name) for name in self.steps}
        self._show(title)

    def start(self, name: str) -> None:
        """A step begins, or begins again."""
        self.steps[name] = Step(name, state="running", started=time.time())
        self._show(f"{self._place(name)} {name}: started")

    def report(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of the trace arrived."""
        for row in rows:
            self.steps[name].report(row)

    def finish(self, name: str, state: State, detail: str = "") -> None:
        """A step is over."""
        step = self.steps[name]
        step.seconds = time.time() - step.started if step.started else 0.0
        step.state, step.detail = state, detail.partition("\n")[0]
        took = f" in {duration(step.seconds)}" if step.started else ""
        said = detail or step.numbers_text()
        self._show(f"{self._place(name)} {name}: {state}{took}{f', {said}' if said else ''}")

    def _place(self, name: str) -> str:
        return f"[{list(self.steps).index(name) + 1}/{len(self.steps)}]"

    def _show(self, text: str) -> None:
        raise NotImplementedError


class LineChecklist(Checklist):
    """One line for each event, and one now and then about a running step: for logs and pipes."""

    def __init__(self, write: Callable[[str], None], steps: Sequence[str] = STEPS):
        super().__init__(steps)
        self._write = write
        self._last_line = 0.0

    def report(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of the trace arrived."""
        super().report(name, rows)
        if time.monotonic() - self._last_line < LINE_SECONDS:
            return
        step = self.steps[name]
        progress = f"{step.position:.0f}/{step.total:.0f}" if step.total else ""
        left = step.seconds_left()
        parts = [progress, step.numbers_text(), f"{duration(left)} left" if left is not None else ""]
        if any(parts):
            self._show(f"{self._place(name)} {name}: " + "  ".join(part for part in parts if part))

    def _show(self, text: str) -> None:
        self._last_line = time.monotonic()
        self._write(text)


class LiveChecklist(Checklist):
    """A table that redraws itself: for a terminal. Use it as a context manager."""

    def __init__(self, console: Console, steps: Sequence[str] = STEPS):
        super().__init__(steps)
        self._note = ""
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=4)

    def __enter__(self) -> "LiveChecklist":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._note = ""
        self._live.stop()

    def note(self, text: str) -> None:
        """Something that is not about one step: shown below the table until the next step starts."""
        self._note = text

    def start(self, name: str) -> None:
        """A step begins, or begins again."""
        self._note = ""
        super().start(name)

    def table(self) -> Group:
        """The checklist as it stands."""
        table = Table.grid(padding=(0, 2), expand=True)
        # Fixed widths: a long message must not squeeze the names, nor the columns move while numbers change.
        for width in (1, max(map(len, self.steps)), BAR_WIDTH, TIME_WIDTH):
            table.add_column(no_wrap=True, width=width)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for step in self.steps.values():
            mark, style = MARKS[step.state]
            table.add_row(
                self._spinner if step.state == "running" else Text(mark, style=style),
                Text(step.name, style="bold" if step.state == "running" else style),
                _bar(step),
                Text(_time(step), style="dim"),
                Text(step.detail or step.numbers_text(), style="red" if step.state == "failed" else ""),
            )
        return Group(*([Text(self.title, style="bold")] if self.title else []), table, Text(self._note, style="cyan"))

    def _show(self, text: str) -> None:
        """The table shows events by itself."""


def duration(seconds: float) -> str:
    """Seconds for people: 7 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@contextmanager
def watched_by(checklist: Checklist) -> Iterator[None]:
    """Within the block, pipeline runs of this context report to the checklist."""
    token = _WATCHER.set(checklist)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def watcher(write: Callable[[str], None]) -> Checklist:
    """The checklist that watches; where nobody does, lines that go to `write`."""
    return _WATCHER.get() or LineChecklist(write)


_WATCHER: ContextVar[Checklist | None] = ContextVar("watcher", default=None)


def _bar(step: Step) -> ProgressBar | Text:
    if step.state == "running" and (share := step.share()) is not None:
        return ProgressBar(total=1.0, completed=share, width=BAR_WIDTH)
    return Text("cached" if step.state == "cached" else "")


def _time(step: Step) -> str:
    if step.state in ("waiting", "skipped"):
        return ""
    left = step.seconds_left() if step.state == "running" else None
    return duration(step.elapsed()) + (f", {duration(left)} left" if left is not None else "")
