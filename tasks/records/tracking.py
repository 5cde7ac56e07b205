"""MLflow: every run once, every point once.

Runs are written here alone; versions and aliases are the business of the registration. All calls go through
`MlflowClient` with explicit run ids: the fluent interface keeps its active run for each thread apart. Import it late;
it takes seconds.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from rlcore.errors import DataError, RLCoreError
from rlcore.exit_codes import TRANSIENT
from tasks.records import artifacts
from tasks.records.environment import artifact_location
from tasks.records.reachable import answers, is_address
from tasks.records.trace import RESERVED
from tasks.records.versioning import StageFacts, commit_of
from tasks.records.wording import first_line

EXPERIMENT = "rlhf-pipeline"
KEY_TAG = "pipeline.key"
CHECKOUT_TAG = "pipeline.checkout"
INPUTS_TAG = "pipeline.inputs"
ATTEMPTS_TAG = "pipeline.attempts"
VALUE_LIMIT = 6000
"""Longest parameter value that MLflow takes, in characters."""
BATCH = 1000
"""Most metrics of one request."""
SHOWN_VERSIONS = ("torch", "transformers", "trl", "prefect", "mlflow", "dvc", "rlhf-pipeline")

logger = logging.getLogger(__name__)


class TrackingFailed(RLCoreError):
    """MLflow did not take what must not be lost. The stages are done and cached; only their record is missing."""

    exit_code = TRANSIENT


class Tracker:
    """An experiment, at the tracking URI of the environment.

    Args:
        root: the checkout whose runs are logged.
        experiment: its name; it is made where it is not there.
    """

    def __init__(self, root: Path, experiment: str = EXPERIMENT):
        self.root = root
        self.uri = os.environ["MLFLOW_TRACKING_URI"]
        self.checkout = f"{socket.gethostname()}:{root}".replace("'", "_")
        self._owner = {CHECKOUT_TAG: self.checkout}
        with recording():
            self.client = connected()
            self.experiment_id = self._experiment(experiment)

    def open_run(self, key: str, name: str, parent: "RunLog | None" = None, inputs: str = "") -> "RunLog":
        """The run with this key: the one that exists, open again, or a new one.

        Args:
            key: tag `pipeline.key`.
            name: shown in the UI.
            parent: the run it is nested in.
            inputs: names what goes in. A run that was begun with other inputs is not gone on with: it loses its key.
        """
        found = self._search(f"tags.`{KEY_TAG}` = '{key}'")
        if found and found[0].data.tags.get(INPUTS_TAG) != inputs:
            self.client.set_tag(found[0].info.run_id, KEY_TAG, f"{key}/replaced")
            found = []
        if found:
            self.client.update_run(found[0].info.run_id, status="RUNNING")
            run = found[0]
        else:
            tags = {KEY_TAG: key, INPUTS_TAG: inputs, **self._owner, **_provenance(self.root)}
            if parent is not None:
                tags["mlflow.parentRunId"] = parent.run_id
            run = self.client.create_run(self.experiment_id, tags=tags, run_name=name)
        return RunLog(self.client, run)

    def sweep(self, going_on: Collection[str] = ()) -> list[str]:
        """End the runs that a killed process of this checkout left open; their ids.

        Args:
            going_on: keys of runs whose process lives.
        """
        owner = self._owner[CHECKOUT_TAG]
        is_open = self._search(f"attributes.status = 'RUNNING' and tags.`{CHECKOUT_TAG}` = '{owner}'")
        stale = [run for run in is_open if run.data.tags.get(KEY_TAG) not in going_on]
        for run in stale:
            self.client.set_terminated(run.info.run_id, status="KILLED")
        return [run.info.run_id for run in stale]

    def run_url(self, run_id: str) -> str:
        """Where a run is shown, below the address of the MLflow UI."""
        return f"#/experiments/{self.experiment_id}/runs/{run_id}"

    def page(self, run_id: str) -> str:
        """Where people see a run: its address, or the way there."""
        if is_address(self.uri):
            return f"{self.uri.rstrip('/')}/{self.run_url(run_id)}"
        return f"`rlhf ui`, then {self.run_url(run_id)}"

    def comparison_url(self, run_ids: Sequence[str]) -> str:
        """Where runs are shown side by side, below the address of the MLflow UI."""
        runs, experiments = (
            quote(json.dumps(names, separators=(",", ":"))) for names in (list(run_ids), [self.experiment_id])
        )
        return f"#/compare-runs?runs={runs}&experiments={experiments}"

    def _experiment(self, name: str) -> str:
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None:
            return experiment.experiment_id
        # Without this tag MLflow opens its pages for prompts and traces instead of those for training runs.
        tags = {"mlflow.experimentKind": "custom_model_development"}
        return self.client.create_experiment(name, artifact_location(self.root, self.uri), tags)

    def _search(self, condition: str) -> list[Run]:
        return list(self.client.search_runs([self.experiment_id], condition, order_by=["attributes.start_time ASC"]))


class RunLog:
    """What is logged to one run. Whatever is logged twice is stored once."""

    def __init__(self, client: MlflowClient, run: Run):
        self.run_id: str = run.info.run_id
        self._client = client
        self._attempt = int(run.data.tags.get(ATTEMPTS_TAG, 0)) + 1
        client.set_tag(self.run_id, ATTEMPTS_TAG, str(self._attempt))
        self._params = dict(run.data.params)
        self._seen = {
            (name, point.step) for name in run.data.metrics for point in client.get_metric_history(self.run_id, name)
        }

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Log rows of a trace. A metric that has a value at a step keeps it: a resumed trainer repeats itself."""
        points = []
        for row in rows:
            for name, value in row.items():
                if name not in RESERVED and (name, row["step"]) not in self._seen:
                    self._seen.add((name, row["step"]))
                    points.append(Metric(name, value, int(row["time"] * 1000), row["step"]))
        for start in range(0, len(points), BATCH):
            try:
                self._client.log_batch(self.run_id, metrics=points[start : start + BATCH])
            except (MlflowException, SQLAlchemyError):
                self._seen -= {(point.key, point.step) for point in points[start:]}
                raise

    def numbers(self, values: Mapping[str, Any]) -> None:
        """Log the numbers of a mapping, one point for each attempt, so that the last one counts."""
        numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
        self.rows([{"step": self._attempt - 1, "time": time.time(), **numbers}])

    def params(self, values: Mapping[str, Any]) -> None:
        """Log settings, nested ones with dotted names. A setting that differs from an earlier attempt becomes a tag."""
        flat = flatten(values)
        new = [Param(name, value) for name, value in flat.items() if name not in self._params]
        for start in range(0, len(new), 100):
            self._client.log_batch(self.run_id, params=new[start : start + 100])
        self.tags({f"resumed.{name}": value for name, value in flat.items() if self._params.get(name, value) != value})
        self._params = {**flat, **self._params}

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self._client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in tags.items()])

    def inputs(self, facts: StageFacts) -> None:
        """Log the data sets a stage read, with DVC's md5 as digest."""
        context = "evaluation" if facts.stage == "evaluate" else "training"
        data = {path: md5 for path, md5 in facts.deps.items() if Path(path).is_relative_to(artifacts.DATA)}
        if data:
            self._client.log_inputs(self.run_id, [_data_set(path, md5, context) for path, md5 in data.items()])

    def data_set(self, path: Path, md5: str, profile: str) -> None:
        """Log one data set that the run trains on.

        Args:
            path: relative to the checkout.
            md5: DVC's, the digest.
            profile: numbers about it, as JSON.
        """
        self._client.log_inputs(self.run_id, [_data_set(str(path), md5, "training", profile)])

    def file(self, path: Path, folder: str | None = None) -> None:
        """Keep a copy of a file or of a folder's content, where it exists."""
        if path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), folder)
        elif path.is_file():
            self._client.log_artifact(self.run_id, str(path), folder)

    def text(self, text: str, name: str) -> None:
        """Keep a text as a file."""
        self._client.log_text(self.run_id, text, name)

    def table(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        """Keep rows as a table that the UI shows."""
        columns = list(dict.fromkeys(column for row in rows for column in row))
        content = {"columns": columns, "data": [[row.get(column) for column in columns] for row in rows]}
        self.text(json.dumps(content, ensure_ascii=False), name)
        self.tags({"mlflow.loggedArtifacts": json.dumps([{"path": name, "type": "table"}])})

    def close(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED."""
        self._client.set_terminated(self.run_id, status=status)


def connected() -> MlflowClient:
    """A client of the tracking server that the environment names.

    Raises:
        TrackingFailed: it does not answer.
    """
    uri = os.environ["MLFLOW_TRACKING_URI"]
    _look_for_server(uri)
    return MlflowClient(uri)


@contextmanager
def recording() -> Iterator[None]:
    """Turn what MLflow refuses within the block into one clear error.

    Raises:
        TrackingFailed: instead of MLflow's own error, or that of the database it keeps.
    """
    try:
        yield
    except MlflowException as error:
        reason = first_line(str(error))
        raise TrackingFailed(
            f"MLflow at {os.environ['MLFLOW_TRACKING_URI']}: {reason}. See to it, and run again."
        ) from error
    except SQLAlchemyError as error:
        raise TrackingFailed(
            f"MLflow's store {os.environ['MLFLOW_TRACKING_URI']}: {first_line(str(error))}. Put a sound copy in its "
            "place, or move it away to begin a new one, and run again."
        ) from error


@contextmanager
def ending(close: Callable[[str], None]) -> Iterator[None]:
    """End a run in MLflow with the status that the block earned: FINISHED, FAILED, or KILLED by what is no error.

    Args:
        close: gets the status.

    Raises:
        TrackingFailed: MLflow does not take the end of a block without an error. With one, the block's error counts.
    """
    try:
        yield
    except BaseException as error:
        try:
            close("FAILED" if isinstance(error, Exception) else "KILLED")
        except (MlflowException, SQLAlchemyError) as unheard:
            logger.warning("MLflow does not learn how the run ended: %s", first_line(str(unheard)))
        raise
    with recording():
        close("FINISHED")


def md5_tag(path: Path | str) -> str:
    """Tag of a run or a version with the DVC md5 of a file or folder of the checkout."""
    return f"dvc.{path}.md5"


def tagged_md5(tags: Mapping[str, str]) -> dict[str, str]:
    """Path to md5, of all tags that `md5_tag` names."""
    return {
        name.removeprefix("dvc.").removesuffix(".md5"): md5
        for name, md5 in tags.items()
        if name.startswith("dvc.") and name.endswith(".md5")
    }


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted names and text, cut to what MLflow takes."""
    flat = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = (value if isinstance(value, str) else json.dumps(value))[:VALUE_LIMIT]
    return flat


def versions() -> list[str]:
    """Every installed distribution as name==version, sorted."""
    installed = {f"{distribution.name}=={distribution.version}" for distribution in metadata.distributions()}
    return sorted(installed, key=str.lower)


PIPELINE_RUN, COMPARISON = "unfinished", "unfinished-comparison"
"""Kinds of what may not end well: names of their notes."""


@dataclass(frozen=True)
class Unfinished:
    """A pipeline run, or a comparison of several, that began and did not end well.

    Attributes:
        key: of its runs in MLflow.
        flow_run_id: of its last attempt in Prefect.
        settings: what it was asked for.
    """

    key: str
    flow_run_id: str
    settings: dict[str, Any]


def unfinished(root: Path, kind: str = PIPELINE_RUN) -> Unfinished | None:
    """What of this checkout did not end well; None where there is nothing, or nothing that can be read.

    Args:
        root: the checkout.
        kind: name of the note, one for each kind of runs.
    """
    try:
        return Unfinished(**artifacts.read_json(_note(root, kind)))
    except (DataError, TypeError):
        return None


def remember_unfinished(root: Path, run: Unfinished, kind: str = PIPELINE_RUN) -> None:
    """Note what starts, so that the next one takes it up if this one is interrupted."""
    artifacts.write_json(_note(root, kind), asdict(run))


def forget_unfinished(root: Path, kind: str = PIPELINE_RUN) -> None:
    """It is over."""
    _note(root, kind).unlink(missing_ok=True)


def _note(root: Path, kind: str) -> Path:
    return root / artifacts.STATE / f"{kind}.json"


def _data_set(path: str, md5: str, context: str, profile: str | None = None) -> DatasetInput:
    return DatasetInput(
        Dataset(name=path, digest=md5, source_type="local", source=json.dumps({"uri": path}), profile=profile),
        tags=[InputTag("mlflow.data.context", context), InputTag("dvc.md5", md5)],
    )


def _provenance(root: Path) -> dict[str, str]:
    tags = {f"version.{name}": metadata.version(name) for name in SHOWN_VERSIONS}
    commit = commit_of(root)
    return {**tags, **({"mlflow.source.git.commit": commit} if commit else {}), "mlflow.source.type": "JOB"}


def _look_for_server(uri: str) -> None:
    """MLflow's own client would try for minutes."""
    if is_address(uri) and not answers(f"{uri}/health"):
        raise TrackingFailed(f"MLflow at {uri} does not answer. Start it, or unset MLFLOW_TRACKING_URI.")
