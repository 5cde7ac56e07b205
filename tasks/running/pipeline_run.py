"""One run of the pipeline: it brings stages up to date, records them, and judges and registers what came out."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rlcore.configs import StageConfig
from rlcore.exit_codes import CONFIGURATION, exit_code_of
from tasks.gate import GateReport, decide
from tasks.records import artifacts, folders, versioning
from tasks.records.parameters import Resolution
from tasks.records.publication import commit, published
from tasks.records.remote import PUSHED_TAG, push_all
from tasks.records.stage import drop_states, stage_key
from tasks.records.trace import last_values
from tasks.records.tracking import RunLog, Tracker, ending, md5_tag
from tasks.records.versioning import StageFacts
from tasks.registry.registration import Registered
from tasks.registry.registration import register as register_version
from tasks.running import data_report
from tasks.running.data_report import DataReport
from tasks.running.following import StageFollower
from tasks.running.practices import PracticeChecks
from tasks.running.progress import Checklist
from tasks.service.resources import deadline, holding
from tasks.service.servers import check_needed

RUN_NAME = "rlhf-pipeline"
"""Of a pipeline run in MLflow."""


class PipelineRun:
    """One run of the pipeline: its parameters, its record in MLflow, and who watches it.

    A plain class on purpose: Prefect looks into dataclasses and mappings that it is handed.

    Attributes:
        facts: of the stages that are up to date.
        data: what the validation found, once that stage is up to date.
        known: of stages that an earlier run brought up to date and that nothing changed since; DVC is not asked again.
        forced: stages to run although nothing changed.
    """

    def __init__(
        self, root: Path, resolution: Resolution, key: str, tracker: Tracker, watcher: Checklist, name: str = RUN_NAME
    ):
        self.root = root
        self.parameters = resolution.parameters
        self.changes = tuple(str(change) for change in resolution.changes)
        self.key = key
        self.tracker = tracker
        self.watcher = watcher
        self.forced: frozenset[str] = frozenset()
        self.facts: dict[str, StageFacts] = {}
        self.data: DataReport | None = None
        self.known: Mapping[str, StageFacts] = {}
        self.started = time.time()
        self.log = tracker.open_run(key, name)
        self.practices = PracticeChecks(self.parameters, root, watcher.note, self.log.tags)

    @property
    def generates_data(self) -> bool:
        """Whether the data come from the stage demo_data, and not from a folder of the user's."""
        return Path(self.parameters.validate.source) == artifacts.RAW

    @property
    def stage_seconds(self) -> float:
        """What the processes of the stages took; one that the cache replaced took nothing."""
        return sum(facts.seconds.get("wall", 0.0) for facts in self.facts.values())

    def bring_up_to_date(self, stage: str) -> StageFacts:
        """Run a stage if DVC asks for it, and record it either way."""
        with self._watched(stage):
            config = self.parameters.of_stage(stage)
            made = {path: md5 for facts in self.facts.values() for path, md5 in facts.outs.items()}
            inputs = stage_key(stage, config, self.root, known=made)
            log = self.tracker.open_run(f"{self.key}/{stage}", stage, self.log, inputs)
            with ending(log.close), StageFollower(self.root, stage, log, self.watcher) as follower:
                log.params(config.model_dump(mode="json"))
                facts = self.known.get(stage) or self._reproduce(stage, config, follower)
                self.facts[stage] = self._record(facts, log)
        self.watcher.finish(stage, "cached" if facts.cache_hit else "done")
        return self.facts[stage]

    def decide(self) -> GateReport:
        """Judge the policy by what `evaluate` measured."""
        with self._watched("gate"):
            measured = artifacts.read_json(self.root / artifacts.EVALUATE)
            report = decide(self.parameters.gate, measured, self.parameters.practices.min_rm_accuracy)
            self.log.numbers({**measured, "gate/passed": int(report.passed)})
            self.log.file(self.root / artifacts.EVALUATE)
            self.log.file(self.root / artifacts.FIGURES, "figures")
            self.log.tags(report.tags())
        refusals = ", ".join(reason.rule for reason in report.refusals)
        self.watcher.finish("gate", "done", "passed" if report.passed else f"refused by {refusals}")
        return report

    def register(self, report: GateReport, flow_run_id: str | None) -> Registered:
        """Make the policy a version in the registry; Prefect's name of the run stands there."""
        with self._watched("register"):
            pushed = push_all(self.root, self.watcher.note)
            self.log.tags({PUSHED_TAG: str(pushed).lower()})
            version = register_version(
                self.parameters.register,
                client=self.tracker.client,
                run_id=self.log.run_id,
                facts=self.facts,
                gate=report,
                key=self.key,
                origin=self.parameters.policy_origin(),
                root=self.root,
                pushed=pushed,
                flow_run_id=flow_run_id,
            )
        if self.parameters.register.commit:
            names = published(self.root, self.parameters.validate.source)
            commit(self.root, names, f"{version}, run {self.key}", self.watcher.note)
        self.watcher.finish("register", "done", str(version))
        return version

    def summary(self, report: GateReport, version: Registered) -> dict[str, Any]:
        """What happened, as plain values."""
        seconds = time.time() - self.started
        return {
            "key": self.key,
            "policy": self.parameters.policy_origin(),
            "seconds": seconds,
            "stage_seconds": self.stage_seconds,
            "import_seconds": sum(facts.seconds.get("import", 0.0) for facts in self.facts.values()),
            "orchestration_seconds": seconds - self.stage_seconds,
            "stages": {name: asdict(facts) for name, facts in self.facts.items()},
            "evaluation": artifacts.read_json(self.root / artifacts.EVALUATE),
            "gate": {
                "passed": report.passed,
                "reasons": [str(reason) for reason in report.reasons],
                "refusals": [str(reason) for reason in report.refusals],
                "advice": list(report.advice),
            },
            "version": str(version),
            "challenger": version.challenger,
            "changed_parameters": list(self.changes),
            "practices": [str(finding) for finding in self.practices.found],
            "data_alarm": None if self.data is None else self.data.alarm(),
            "mlflow": {
                "uri": self.tracker.uri,
                "run_id": self.log.run_id,
                "page": self.tracker.run_url(self.log.run_id),
            },
        }

    def _reproduce(self, stage: str, config: StageConfig, follower: StageFollower) -> StageFacts:
        """Let DVC bring a stage up to date."""
        used = folders.named_folders(config, self.root)
        allowed = self.parameters.resources_of(stage)
        with holding(stage, allowed, self.watcher.note) as visible:
            check = deadline(stage, allowed)

            def look() -> None:
                check()
                follower.look()

            try:
                versioning.reproduce(
                    stage,
                    root=self.root,
                    environment={**os.environ, **visible},
                    force=stage in self.forced or folders.have_changed(stage, used, self.root),
                    while_running=look,
                )
            except versioning.StageFailed:
                if stage == "validate":
                    data_report.keep_refused(self.log, self.root)
                raise
        # What was forced is done: a retry after a later fault must not train again.
        self.forced -= {stage}
        folders.remember(stage, used, self.root)
        facts = versioning.facts(stage, self.root)
        drop_states(stage, self.root)
        unread = {str(path) for path in self.parameters.unread_by_policy()} if stage == "policy" else set()
        return replace(facts, deps={path: md5 for path, md5 in facts.deps.items() if path not in unread})

    def _record(self, facts: StageFacts, log: RunLog) -> StageFacts:
        """Complete the stage's run from its outputs. The same after a cache hit as after training."""
        stage = facts.stage
        trace = self.root / artifacts.TRACES[stage]
        rows = artifacts.read_rows(trace)
        self.watcher.report(stage, rows)
        log.rows(rows)
        log.inputs(facts)
        log.tags({"cache_hit": str(facts.cache_hit).lower()})
        log.tags({md5_tag(path): md5 for path, md5 in (*facts.deps.items(), *facts.outs.items())})
        log.file(trace)
        if stage in artifacts.SAMPLES:
            log.table(artifacts.read_rows(self.root / artifacts.SAMPLES[stage]), "samples.json")
        if stage == "validate":
            self.data = data_report.record(self.log, facts, self.tracker.client, self.root)
            if alarm := self.data.alarm():
                self.watcher.note(alarm)
        if stage == "evaluate":
            log.file(self.root / artifacts.EVALUATE)
        return replace(facts, metrics=last_values(rows))

    @contextmanager
    def _watched(self, step: str) -> Iterator[None]:
        """Show a step as running, and as failed if the block does not come to its end."""
        check_needed()
        self.watcher.start(step)
        done, why = False, "stopped"
        try:
            self.practices.judge(self.facts)
            yield
            done = True
        except Exception as error:
            # Such a fault ends the run, and is said where it ends. Others may be tried again.
            why = "" if exit_code_of(error) == CONFIGURATION else str(error)
            raise
        finally:
            if not done:
                self.watcher.finish(step, "failed", why)
