"""A comparison of algorithms: the same pipeline run once for each arm and seed, nothing registered, one table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact

from tasks.gate import GateReport
from tasks.records import artifacts
from tasks.records.lent_parameters import lent, restore
from tasks.records.parameters import Resolution, check_seeds, resolve
from tasks.records.stage import STAGE_SECONDS
from tasks.records.trace import last_values
from tasks.records.tracking import COMPARISON, RunLog, Tracker, forget_unfinished
from tasks.records.versioning import StageFacts
from tasks.running.comparison_table import Arm, Line, Measured, arms_of, markdown, table_of
from tasks.running.opening import held_checkout, opened_run, take_up
from tasks.running.pipeline_run import PipelineRun
from tasks.running.progress import Checklist

SHARED = artifacts.STAGES[: artifacts.STAGES.index("policy")]
"""Stages that know nothing of the algorithm: once for each seed."""

RUN_NAME = "compare"
"""Of the comparison in MLflow."""
KEY_TAG = "compare.key"
"""Tag of the pipeline runs of a comparison and of its own run."""
DESCRIPTION_TAG = "mlflow.note.content"
"""What MLflow shows as the description of a run, as Markdown."""


class Comparison:
    """Pipeline runs that differ in how the policy is trained and in the seed, and what came out.

    A plain class on purpose: Prefect looks into dataclasses and mappings that it is handed.

    Attributes:
        arms: what is compared.
        seeds: with which each arm runs.
    """

    def __init__(
        self,
        root: Path,
        checklist: Checklist,
        arms: Sequence[Arm],
        seeds: Sequence[int],
        *,
        params_file: Path | None,
        sets: Sequence[str],
        resolution: Resolution,
        key: str,
    ):
        self.root = root
        self.arms = tuple(arms)
        self.seeds = tuple(seeds)
        self.key = key
        self._checklist = checklist
        self._params_file = params_file
        self._sets = tuple(sets)
        self._bootstrap_samples = resolution.parameters.evaluate.bootstrap_samples
        self._measured: list[Measured] = []
        self._stage_seconds = 0.0
        self._shared: dict[int, dict[str, StageFacts]] = {}

    @contextmanager
    def run(self, arm: Arm, seed: int) -> Iterator[PipelineRun]:
        """The pipeline run of an arm with a seed. Its settings stand in params.yaml from here on.

        Raises:
            ConfigError: somebody changed params.yaml since the comparison began.
        """
        number, count = len(self._measured) + 1, len(self.arms) * len(self.seeds)
        self._checklist.begin(f"{number} of {count}: {arm.name}, seed {seed}")
        sets = (*self._sets, *arm.settings(seed))
        restore(self.root)
        with opened_run(
            self.root,
            self._checklist,
            resolve(self.root / artifacts.PARAMS, self._params_file, sets),
            key=f"{self.key}/{arm.name}/{seed}",
            name=f"{arm.name}, seed {seed}",
        ) as run:
            run.log.tags({KEY_TAG: self.key, "compare.arm": arm.name, "compare.seed": str(seed)})
            run.known = self._shared.get(seed, {})
            yield run
        self._shared[seed] = {
            stage: replace(run.facts[stage], cache_hit=True, seconds={}) for stage in SHARED if stage in run.facts
        }

    def take(self, arm: Arm, seed: int, run: PipelineRun, report: GateReport) -> None:
        """Take in what the evaluation of a run left."""
        self._stage_seconds += run.stage_seconds
        trace = artifacts.read_rows(self.root / artifacts.TRACES["policy"])
        answers = artifacts.read_rows(self.root / artifacts.ANSWERS)
        self._measured.append(Measured(arm, seed, answers, last_values(trace).get(STAGE_SECONDS), report.passed))

    def publish(self) -> dict[str, Any]:
        """Record the table in MLflow and Prefect; it and where to look."""
        lines = table_of(self._measured, self._bootstrap_samples)
        text = markdown(lines)
        tracker = Tracker(self.root)
        parent = tracker.open_run(self.key, RUN_NAME)
        children = [self._log_line(tracker, parent, line) for line in lines]
        page = tracker.comparison_url([child.run_id for child in children])
        parent.tags({KEY_TAG: self.key, DESCRIPTION_TAG: f"{text}\n[The same in columns]({page})"})
        parent.text(text, "comparison.md")
        parent.close("FINISHED")
        create_markdown_artifact(text, key="rlhf-comparison", description="The algorithms on the same data.")
        return {
            "table": text,
            "stage_seconds": self._stage_seconds,
            "numbers": {line.name: line.numbers() for line in lines},
            "mlflow": {
                "uri": tracker.uri,
                "run_id": parent.run_id,
                "page": page,
                "run_page": tracker.run_url(parent.run_id),
                "filter": f"tags.`{KEY_TAG}` = '{self.key}'",
            },
        }

    def _log_line(self, tracker: Tracker, parent: RunLog, line: Line) -> RunLog:
        """One run that holds one line of the table and nothing else."""
        log = tracker.open_run(f"{self.key}/{line.name}", line.name, parent)
        log.numbers(line.numbers())
        if line.arm is not None:
            log.params({"algorithm": line.arm.algorithm, "reward_function": line.arm.reward_function})
        log.params({"seeds": ", ".join(map(str, self.seeds))})
        log.close("FINISHED")
        return log


@contextmanager
def comparison(seeds: Sequence[int] | None, params_file: str | None, sets: Sequence[str]) -> Iterator[Comparison]:
    """Everything around the arms: the checkout is held, and at the end, however it comes, params.yaml is as it was.

    An interrupted comparison is taken up by the next one that asks for the same.

    Args:
        seeds: with which each arm runs; by default the one of the settings.
        params_file: parameter file whose settings go over those of params.yaml.
        sets: single settings over both. Algorithm, reward function and seed are the arms' own.

    Raises:
        ConfigError: no checkout, faulty parameters, or a seed that is none or named twice.
        TrackingFailed: MLflow does not answer.
    """
    overrides = Path(params_file) if params_file else None
    with held_checkout() as (root, checklist):
        resolution = resolve(root / artifacts.PARAMS, overrides, sets)
        chosen = [resolution.parameters.seed] if seeds is None else list(seeds)
        check_seeds(chosen)
        arms = arms_of(resolution.parameters)
        runs = [
            resolve(root / artifacts.PARAMS, overrides, (*sets, *arm.settings(seed))).values
            for seed in chosen
            for arm in arms
        ]
        with lent(root, runs):
            key = take_up(root, {"runs": runs}, COMPARISON)
            yield Comparison(
                root, checklist, arms, chosen, params_file=overrides, sets=sets, resolution=resolution, key=key
            )
            forget_unfinished(root, COMPARISON)
