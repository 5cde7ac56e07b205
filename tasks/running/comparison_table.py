"""Algorithms beside each other: means with intervals of what each arm's evaluation measured, pooled over seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.demos import is_checker, named_function
from tasks.measuring import measures
from tasks.records.parameters import Parameters
from tasks.records.stage import STAGE_SECONDS

Row = Mapping[str, Any]

NO_MEASURES = ("model", "prompt", "response", "group")
"""Columns of an answer that say what it is; the others were measured on it."""

HEADINGS = {
    "reward/score_mean": "reward model score",
    "response/length_mean": "length, tokens",
    "response/eos_fraction": "ended",
    "kl/ref_sequence_mean": "KL to SFT, nats per response",
}


@dataclass(frozen=True)
class Arm:
    """One way to train a policy that is compared with others."""

    name: str
    algorithm: str
    reward_function: str | None = None
    """As in params.yaml."""

    def settings(self, seed: int) -> list[str]:
        """What it changes in params.yaml, as "key=value"."""
        reward_function = "null" if self.reward_function is None else self.reward_function
        return [f"algorithm={self.algorithm}", f"reward_function={reward_function}", f"seed={seed}"]


@dataclass(frozen=True)
class Measured:
    """What one arm came to with one seed."""

    arm: Arm
    seed: int
    answers: Sequence[Row]
    """Answers of all models to the held-out prompts, with what was measured on each."""
    seconds: float | None
    """What the stage `policy` took."""
    passed: bool
    """The gate's verdict."""


@dataclass(frozen=True)
class Line:
    """One line of the table: a model or an arm over all seeds."""

    name: str
    values: Mapping[str, tuple[float, float, float]]
    """Measure → mean and the ends of its 95 % interval."""
    by_seed: Mapping[int, float]
    """Seed → mean of the first measure."""
    arm: Arm | None = None
    seconds: float | None = None
    """Mean over the seeds of what training took; None where none is known."""
    passed: int | None = None
    """Seeds with which the gate passed it."""

    def numbers(self) -> dict[str, float]:
        """Means, time and share of passed seeds as metrics.

        Intervals stand in the table alone: beside each mean they would bury it.
        """
        numbers = {name: mean for name, (mean, _, _) in self.values.items()}
        if self.seconds is not None:
            numbers[STAGE_SECONDS] = self.seconds
        if self.passed is not None:
            numbers["gate/passed"] = self.passed / len(self.by_seed)
        return numbers


def arms_of(parameters: Parameters) -> tuple[Arm, ...]:
    """PPO and GRPO on the reward model, DPO and ORPO on the pairs; and GRPO on a verifier, which the others never see.

    The verifier is `reward_function`, or else the checker of `evaluate.gold`. There is no such arm where neither is
    given, or where the checker's parameters are not named row, response and finished.

    Raises:
        ConfigError: one of the two names no function.
    """
    arms = tuple(Arm(algorithm, algorithm) for algorithm in ("ppo", "grpo", "dpo", "orpo"))
    verifier = parameters.reward_function
    if verifier is None:
        verifier = _checker(parameters.evaluate.gold)
    else:
        # Before anything is trained: its arm is the last one.
        named_function("reward_function", verifier)
    return arms if verifier is None else (*arms, Arm("grpo + verifier", "grpo", verifier))


def table_of(measured: Sequence[Measured], bootstrap_samples: int) -> list[Line]:
    """A line for the SFT model, the champion if there is one, and each arm.

    What is beside the policy answers alike in every arm, so that all arms together have its means and intervals.
    Intervals resample groups of prompts, of all seeds together: each seed has its own data.

    Args:
        measured: each arm with each seed.
        bootstrap_samples: resamples behind each interval.
    """
    others = dict.fromkeys(row["model"] for each in measured for row in each.answers if row["model"] != "policy")
    lines = [_line(name, name, measured, bootstrap_samples) for name in others]
    for arm in dict.fromkeys(each.arm for each in measured):
        lines.append(_line(arm.name, "policy", [each for each in measured if each.arm == arm], bootstrap_samples, arm))
    return lines


def markdown(lines: Sequence[Line]) -> str:
    """The table, and one of the first measure by seed where there are several."""
    names = list(dict.fromkeys(name for line in lines for name in line.values))
    seeds = list(dict.fromkeys(seed for line in lines for seed in line.by_seed))
    heads = ["", *(HEADINGS.get(name, name.replace("_", " ")) for name in names), "training, s", "gate"]
    rows = [
        [_label(line), *(_cell(line.values.get(name)) for name in names), _seconds(line), _verdict(line)]
        for line in lines
    ]
    parts = [_table(heads, rows)]
    if len(seeds) > 1:
        heads = [f"{HEADINGS.get(names[0], names[0].replace('_', ' '))} by seed", *map(str, seeds)]
        rows = [
            [line.name, *(f"{line.by_seed[seed]:z.2f}" for seed in seeds if seed in line.by_seed)] for line in lines
        ]
        parts.append(_table(heads, rows))
    parts += list(_notes(lines, seeds))
    return "\n\n".join(parts) + "\n"


def _checker(name: str | None) -> str | None:
    """The checker's name, if it can be a reward."""
    if name is None:
        return None
    return name if is_checker(named_function("evaluate.gold", name)) else None


def _line(name: str, model: str, measured: Sequence[Measured], bootstrap_samples: int, arm: Arm | None = None) -> Line:
    rows = [(each.seed, row) for each in measured for row in each.answers if row["model"] == model]
    groups = measures.GroupBootstrap([f"{seed}/{row['group']}" for seed, row in rows], bootstrap_samples, seed=0)
    names = [column for column in rows[0][1] if column not in NO_MEASURES]
    values = {}
    for measure in names:
        numbers = [row[measure] for _, row in rows]
        values[measure] = (measures.mean(numbers), *groups.interval(numbers))
    by_seed = {
        each.seed: measures.mean([row[names[0]] for seed, row in rows if seed == each.seed]) for each in measured
    }
    if arm is None:
        return Line(name, values, by_seed)
    known = [each.seconds for each in measured if each.seconds is not None]
    return Line(
        name, values, by_seed, arm, measures.mean(known) if known else None, sum(each.passed for each in measured)
    )


def _notes(lines: Sequence[Line], seeds: Sequence[int]) -> Iterator[str]:
    yield (
        "Mean of all answers to held-out prompts, sampled; in brackets the 95 % interval of a bootstrap over prompt "
        f"groups{f' of {len(seeds)} seeds' if len(seeds) > 1 else ''}."
    )
    for line in lines:
        if line.arm is not None and line.arm.reward_function is not None:
            yield (
                f"¹ {line.name} learns from {line.arm.reward_function}, which the others never see: it shows what a "
                "perfect reward would give, not what preferences give."
            )


def _label(line: Line) -> str:
    return f"{line.name} ¹" if line.arm is not None and line.arm.reward_function is not None else line.name


def _cell(value: tuple[float, float, float] | None) -> str:
    if value is None:
        return ""
    mean, low, high = value
    return f"{mean:z.2f} [{low:z.2f}, {high:z.2f}]"


def _seconds(line: Line) -> str:
    return "" if line.seconds is None else f"{line.seconds:.0f}"


def _verdict(line: Line) -> str:
    if line.passed is None:
        return ""
    if len(line.by_seed) == 1:
        return "passed" if line.passed else "refused"
    return f"passed {line.passed} of {len(line.by_seed)}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )
