"""Retraining: whether the data are new to every policy in the registry, and the run that follows if they are."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlflow import MlflowClient

from rlcore.errors import ConfigError, DataError
from tasks.records import artifacts
from tasks.records.lent_parameters import lent
from tasks.records.parameters import Resolution, resolve, write_parameters
from tasks.records.tracking import Tracker, md5_tag
from tasks.registry.store import POLICY_MODEL, champion, with_tags
from tasks.running.opening import held_checkout, opened_run
from tasks.running.pipeline_run import PipelineRun

Start = Literal["base", "champion"]
RUN_NAME = "retraining"


@dataclass(frozen=True)
class Retraining:
    """What a retraining came to.

    Attributes:
        run: open, to be gone through; None where there is nothing new.
        reason: why there is none, in words.
    """

    run: PipelineRun | None
    reason: str = ""


@contextmanager
def retraining_run(
    start: Start, source: str | None, params_file: str | None, sets: Sequence[str]
) -> Iterator[Retraining]:
    """A pipeline run on data that no policy has learnt from; without such data nothing is opened or recorded.

    Args:
        start: what supervised fine-tuning begins with: `base` is `sft.model_name`, `champion` the policy that counts.
            With `champion`, params.yaml keeps its `sft.model_name`.
        source: folder with the data; by default `validate.source`. It becomes that setting.
        params_file: parameter file whose settings go over those of params.yaml.
        sets: single settings over both.

    Raises:
        ConfigError: faulty settings, or there is no champion to begin with.
        DataError: the data are not there.
    """
    chosen = [*sets, *([f"validate.source={source}"] if source else [])]
    with held_checkout() as (root, checklist), ExitStack() as stack:
        resolution = resolve(root / artifacts.PARAMS, Path(params_file) if params_file else None, chosen)
        client = Tracker(root).client
        reason = _nothing_new(client, root, resolution)
        if reason:
            checklist.note(reason)
            yield Retraining(None, reason)
            return
        if start == "champion":
            resolution = _from_champion(client, root, resolution)
            stack.enter_context(lent(root, [resolution.values]))
        yield Retraining(stack.enter_context(opened_run(root, checklist, resolution, name=RUN_NAME)))


def _nothing_new(client: MlflowClient, root: Path, resolution: Resolution) -> str:
    """Why there is nothing to learn from; empty where there is."""
    source = resolution.parameters.validate.source
    folder = root / source
    if not folder.is_dir():
        if Path(source) == artifacts.RAW:
            return ""
        raise DataError(f"{source}: no such folder. Add data with `rlhf data add FILE`, or bring it with `dvc pull`.")
    md5 = artifacts.content_md5(folder)
    version = with_tags(client, POLICY_MODEL, {md5_tag(source): md5})
    if version is None:
        return ""
    return f"nothing new: {POLICY_MODEL} version {version.version} learnt from these data ({source}, md5 {md5})"


def _from_champion(client: MlflowClient, root: Path, resolution: Resolution) -> Resolution:
    """The same settings with the champion as start model; params.yaml holds those of the caller."""
    if champion(client) is None:
        raise ConfigError("start: found champion, but there is none. Promote a version, or start from base.")
    write_parameters(root / artifacts.PARAMS, resolution.changes)
    return resolve(root / artifacts.PARAMS, sets=[f"sft.model_name={artifacts.CHAMPION_DIR}"])
