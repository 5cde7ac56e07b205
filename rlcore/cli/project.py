"""One training from the documents' settings: read the rows, train, write the model folder, say what to do next."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from rlcore.backends import trainer_for
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.rewards import check_rewards, reward_source
from rlcore.cli.rows import read_splits, rename_columns
from rlcore.cli.stages import stage_config, unread_fields
from rlcore.errors import ConfigError

COLUMN_FIELDS = ("text_column", "prompt_text_column", "rejected_text_column")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
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
            would replace something that is no model.
    """

    params: LLMTrainingParams
    backend: str = "local"
    process: bool = False

    def __post_init__(self) -> None:
        if self.backend != "local":
            raise ConfigError(f"backend={self.backend!r}: expected 'local'. Training runs on this machine alone.")
        _refuse_unread(self.params, are_columns_read=self.process)
        if self.params.stage == "ppo":
            check_rewards(self.params)
        if self.params.stage == "grpo":
            _check_environment(self.params)
        _check_folder(Path(self.params.project_name))

    def create(self) -> Path:
        """Train, and print what was written and how to go on.

        Returns:
            the model folder: project_name.

        Raises:
            ConfigError, DataError: a setting, a file or a row is wrong. Nothing was written.
            CheckpointError, TrainingDiverged, DeviceMemoryError: see the trainer.
        """
        params, output_dir = self.params, Path(self.params.project_name)
        judges: dict[str, Any] = {} if params.model_ref is None else {"reference": params.model_ref}
        if params.stage == "grpo":
            judges["environment"], data = _environment(params)
        else:
            data = self._data()
        if params.stage == "ppo":
            judges["reward"] = reward_source(params, data["train"])
        config = stage_config(params, len(data["train"]))
        train = trainer_for(params.stage)
        result = train(config, data, output_dir, resume_dir=_resume_dir(params), on_metrics=_log_metrics, **judges)
        print(f"Wrote the model of step {result.best_step} to {output_dir}.")
        print(f"Next: {_next_step(params)}")
        return output_dir

    def _data(self) -> datasets.DatasetDict:
        params = self.params
        splits = read_splits(params.data_path, params.train_split, params.valid_split)
        if self.process:
            splits = {
                split: rename_columns(rows, _columns(params, rows.column_names)) for split, rows in splits.items()
            }
        return datasets.DatasetDict({split: _first(rows, params.max_samples) for split, rows in splits.items()})


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
    if params.rl_env_module is None or params.rl_env_class is None:
        raise ConfigError(
            f"grpo found rl_env_module={params.rl_env_module!r} and rl_env_class={params.rl_env_class!r}, expected "
            "both. Name the module and the class of your environment."
        )


def _check_folder(folder: Path) -> None:
    """Let through what is free or holds a model. The result takes the place of the folder as a whole."""
    is_free = not folder.exists() or (folder.is_dir() and next(folder.iterdir(), None) is None)
    if not is_free and not (folder / "config.json").is_file():
        raise ConfigError(
            f"project_name={str(folder)!r}: found something that is no model folder, which the result would replace. "
            "Choose another name, or move it away."
        )


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


def _columns(params: LLMTrainingParams, found: list[str]) -> dict[str, str]:
    """Column of the rows for each column that the trainer reads."""
    text = {"sft": "response", "ppo": "prompt"}.get(params.stage, "chosen")
    is_default = params.text_column == LLMTrainingParams.model_fields["text_column"].default
    columns = {text: text if is_default and params.text_column not in found else params.text_column}
    if text != "prompt":
        columns["prompt"] = params.prompt_text_column or "prompt"
    if text == "chosen":
        columns["rejected"] = params.rejected_text_column or "rejected"
    return columns


def _resume_dir(params: LLMTrainingParams) -> Path | None:
    folder = params.resume_from_checkpoint
    if folder is None:
        return None
    return Path(f"{params.project_name}-checkpoints" if folder == "auto" else folder)


def _log_metrics(step: int, metrics: Mapping[str, float]) -> None:
    logger.info("Step %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))


def _next_step(params: LLMTrainingParams) -> str:
    if params.stage == "reward":
        return f'LLMTrainingParams(trainer="ppo", rl_reward_model_path="{params.project_name}", …)'
    return f'transformers.AutoModelForCausalLM.from_pretrained("{params.project_name}")'
