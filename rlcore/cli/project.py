"""One training from the documents' settings: read the rows, train, write the model folder, say what to do next."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from rlcore.backends import backends_of, trainer_for
from rlcore.cli.checkpoints import checkpoint_folder
from rlcore.cli.columns import trainer_rows
from rlcore.cli.hub import claim_repository, repository_of, upload
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.practices import check_practices
from rlcore.cli.progress import shown_progress
from rlcore.cli.readers import unread_fields
from rlcore.cli.rewards import check_rewards, reward_source
from rlcore.cli.rows import read_splits
from rlcore.cli.run_logs import open_log, run_log
from rlcore.cli.stages import implementation_of, stage_config
from rlcore.errors import ConfigError, DeviceMemoryError
from rlcore.results import MetricSink, TrainResult, ignore_metrics
from rlcore.training_record import record_training

COLUMN_FIELDS = ("text_column", "prompt_text_column", "rejected_text_column", "column_mapping")
SAMPLED = ("ppo", "grpo")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """A training that has ended well.

    Attributes:
        result: of the trainer.
        record: a line about where its numbers are kept; None where they are not.
    """

    result: TrainResult
    record: str | None


@dataclass(frozen=True, repr=False)
class AutoTrainProject:
    """A training that is described and not yet run.

    It runs in this process, so that errors reach the caller and a script needs no guard for its child processes.

    Args:
        params: settings.
        backend: where to train; this machine, `local`, is all there is.
        process: bring the data into the trainer's form first: columns get the names that the trainer reads. False
            expects them to have these names.

    Raises:
        ConfigError: another backend, a setting that the trainer does not read, a missing one, or a project_name that
            would replace something that is no model, or one of the inputs.
    """

    params: LLMTrainingParams
    backend: str = "local"
    process: bool = False

    def __post_init__(self) -> None:
        params = self.params
        if self.backend != "local":
            raise ConfigError(f"backend={self.backend!r}: expected 'local'. Training runs on this machine alone.")
        if implementation_of(params) not in backends_of(params.stage):
            there = " and ".join(backends_of(params.stage))
            raise ConfigError(
                f"implementation={params.implementation!r}: {params.stage} has {there} alone. Leave it out."
            )
        _refuse_unread(params, are_columns_read=self.process)
        if params.stage == "grpo":
            _check_environment(params)
        if params.stage in SAMPLED and params.rl_env_class is None:
            check_rewards(params)
        if params.push_to_hub:
            repository_of(params)
        if params.log != "none":
            open_log(params.log)
        _warn_of_filtered_sampling(params)
        check_practices(params, is_measured=_is_measured(params))
        _check_folder(params)

    def __repr__(self) -> str:
        params = self.params
        return (
            f"AutoTrainProject: {params.stage} of {params.model} on {params.data_path} into {params.project_name}. "
            "Nothing has run yet: create() trains it."
        )

    def create(self) -> Path:
        """Train, show progress, and print what was written and how to go on.

        Returns:
            the model folder: project_name.

        Raises:
            ConfigError, DataError: a setting, a file or a row is wrong. Nothing was written.
            CheckpointError, TrainingDiverged, DeviceMemoryError: see the trainer.
        """
        with shown_progress(self.params.stage) as show:
            done = self.train(show)
        say_what_was_written(self.params, done, _next_step(self.params))
        return done.result.model_dir

    def train(self, on_metrics: MetricSink = ignore_metrics) -> Done:
        """As create(), but without a word.

        Args:
            on_metrics: gets the numbers of the trainer; what it raises ends the run.

        Returns:
            the trainer's result, and where its numbers are kept.

        Raises:
            RLCoreError: see create.
        """
        # Checking settings does without torch.
        import torch

        from rlcore.processes import launched_processes

        params, is_first = self.params, launched_processes().is_first
        data, judges = self._data_and_judges()
        config = stage_config(params, len(data["train"]))
        if params.push_to_hub and is_first:
            claim_repository(params)
        settings = {
            "llm": params.model_dump(mode="json", exclude={"token"}),
            params.stage: config.model_dump(mode="json"),
        }
        with ExitStack() as stack:
            folder = stack.enter_context(checkpoint_folder(params, is_first=is_first))
            log = stack.enter_context(
                run_log(params.log if is_first else "none", params.project_name, settings, folder)
            )

            def report(step: int, metrics: Mapping[str, float]) -> None:
                log.log(step, metrics)
                on_metrics(step, metrics)

            sinks: dict[str, Any] = {"on_metrics": report, "on_samples": log.log_samples}
            train = trainer_for(params.stage, implementation_of(params))
            try:
                result = train(config, data, Path(params.project_name), resume_dir=folder, **sinks, **judges)
            except torch.OutOfMemoryError as error:
                # Our own trainers halve what does not fit; TRL's do not.
                raise DeviceMemoryError(
                    f"The device has no room for batch_size={params.batch_size}: {str(error).splitlines()[0]} Lower "
                    "it, and raise gradient_accumulation."
                ) from error
            if is_first:
                record_training(result, params.stage, params.model)
                _finish(params, result.model_dir)
            return Done(result, log.finish(result))

    def _data_and_judges(self) -> tuple[datasets.DatasetDict, dict[str, Any]]:
        """Rows to train on, and what the trainer asks besides."""
        params = self.params
        judges: dict[str, Any] = {} if params.model_ref is None else {"reference": params.model_ref}
        if params.rl_env_class is not None:
            judges["environment"], data = _environment(params)
            return data, judges
        data = self._data()
        if params.stage in SAMPLED:
            judges["reward"] = reward_source(params, data["train"])
        return data, judges

    def _data(self) -> datasets.DatasetDict:
        params = self.params
        splits = read_splits(params.data_path, params.train_split, params.valid_split, is_measured=_is_measured(params))
        first = {split: _first(rows, params.max_samples) for split, rows in splits.items()}
        if self.process:
            first = {split: trainer_rows(rows, params) for split, rows in first.items()}
        return datasets.DatasetDict(first)


def say_what_was_written(params: LLMTrainingParams, done: Done, next_step: str) -> None:
    """Print what a run has written and what people do next; of several processes the first does."""
    from rlcore.processes import launched_processes

    if not launched_processes().is_first:
        return
    what = "reward model" if params.stage == "reward" else "model" if params.merge_adapter else "adapters"
    print(f"Wrote the {what} of step {done.result.best_step} to {done.result.model_dir}.")
    if params.push_to_hub:
        print(f"Uploaded it to https://huggingface.co/{repository_of(params)}.")
    if done.record is not None:
        print(done.record)
    print(f"Next: {next_step}")


def _refuse_unread(params: LLMTrainingParams, *, are_columns_read: bool) -> None:
    unread = unread_fields(params)
    if not are_columns_read:
        defaults = LLMTrainingParams.model_fields
        columns = (name for name in COLUMN_FIELDS if getattr(params, name) != defaults[name].default)
        unread |= dict.fromkeys(columns, "it needs process=True")
    if unread:
        listed = "; ".join(f"{name}={getattr(params, name)!r} ({reason})" for name, reason in unread.items())
        raise ConfigError(f"The trainer {params.stage} does not read {listed}. Leave it out.")


def _check_environment(params: LLMTrainingParams) -> None:
    if (params.rl_env_module is None) != (params.rl_env_class is None):
        raise ConfigError(
            f"grpo found rl_env_module={params.rl_env_module!r} and rl_env_class={params.rl_env_class!r}, expected "
            "both. Name the module and the class of your environment."
        )


def _check_folder(params: LLMTrainingParams) -> None:
    """Let through what is free or holds a model that is no input. The result takes the place of the whole folder."""
    # Loads torch, so this is the last of the checks.
    from rlcore.checkpoint import require_replaceable

    folder = Path(params.project_name)
    require_replaceable(folder)
    for name in ("model", "model_ref", "rl_reward_model_path", "data_path"):
        value = getattr(params, name)
        if value is None or not Path(value).exists():
            continue
        place, found = folder.resolve(), Path(value).resolve()
        if found.is_relative_to(place):
            what = f"that is {name} too" if found == place else f"{name}={value!r} lies there"
            raise ConfigError(
                f"project_name={params.project_name!r}: {what}, which the result would replace. Choose another name."
            )


def _warn_of_filtered_sampling(params: LLMTrainingParams) -> None:
    if params.stage in SAMPLED and (params.rl_top_k or params.rl_top_p < 1):
        logger.warning(
            "rl_top_k=%d and rl_top_p=%g draw from a part of the distribution that is trained: KL and gradient are "
            "off-policy. 0 and 1 draw from all of it.",
            params.rl_top_k,
            params.rl_top_p,
        )


def _is_measured(params: LLMTrainingParams) -> bool:
    """Whether validation rows have a use. The scores of a prompt's compared responses always add up to 0."""
    return params.eval_strategy == "epoch" and params.rl_env_type != "preference_comparison"


def _environment(params: LLMTrainingParams) -> tuple[Any, datasets.DatasetDict]:
    """The environment of grpo and the prompts that it brings."""
    # These load torch.
    from rlcore.environments import load_episode_environment
    from rlcore.grpo.environment import environment_rows
    from rlcore.models import load_tokenizer

    module, class_name = str(params.rl_env_module), str(params.rl_env_class)
    environment = load_episode_environment(module, class_name, params.rl_env_config)
    rows = datasets.Dataset.from_list(environment_rows(environment, load_tokenizer(params.model)))
    return environment, datasets.DatasetDict(train=_first(rows, params.max_samples))


def _first(rows: datasets.Dataset, count: int | None) -> datasets.Dataset:
    return rows if count is None else rows.take(min(count, len(rows)))


def _finish(params: LLMTrainingParams, folder: Path) -> None:
    """What is done to the model folder after training."""
    if params.peft and not params.merge_adapter:
        from rlcore.cli.adapters import keep_adapter_alone

        keep_adapter_alone(folder)
    if params.push_to_hub:
        upload(params, folder)


def _next_step(params: LLMTrainingParams) -> str:
    if params.stage == "reward":
        return f'LLMTrainingParams(trainer="ppo", rl_reward_model_path="{params.project_name}", …)'
    return f'transformers.AutoModelForCausalLM.from_pretrained("{params.project_name}")'
