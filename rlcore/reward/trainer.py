"""The reward trainer: a reward model in memory, runs over preferences or labels, saving and loading."""

import os
from collections.abc import Mapping, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlcore.configs import RewardModelConfig
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat, Prompt
from rlcore.forward_backward import AsyncTrainingClient, in_first_process, training_device
from rlcore.models import require_arguments, require_tokenizer, vocabulary_size
from rlcore.pair_training import PairObjective, PairRun, evaluate_pairs, require_lists
from rlcore.results import MetricSink, ignore_metrics
from rlcore.reward.files import load_weights, read_saved, save_reward_file, save_reward_model
from rlcore.reward.labels import LabelledRows, Targets, labelled_rows
from rlcore.reward.model import RewardModel
from rlcore.reward.multi_objective import MultiObjectiveRewardModel
from rlcore.reward.objective import EVALUATION, HISTORY, RewardObjective
from rlcore.reward.pairs import TokenPairs
from rlcore.reward.texts import Text, encode_texts
from rlcore.reward.training import plan_of, training_mode


class RewardModelTrainer:
    """Trains a reward model that is held in memory; `rlcore.reward.train` is the stage that publishes and resumes.

    Launched in several processes, these share the rows; batch_size counts those of all.

    Args:
        model: trained in place.
        tokenizer: of the model.
        config: learning_rate, warmup_steps, gradient_accumulation_steps, weight_decay, max_grad_norm,
            center_rewards_coef, max_length and seed of the runs. What the model is, it knows from its own config.
        device: where to train; None takes a GPU where there is one.
        on_metrics: gets the numbers of a run, every config.logging_steps optimiser steps and after each epoch.

    Attributes:
        training_client: everything that reaches the model goes through it.

    Raises:
        ConfigError: a device that is not there, an argument of another class, or a tokenizer without an end or a
            padding token.
    """

    def __init__(
        self,
        model: RewardModel,
        tokenizer: PreTrainedTokenizerBase,
        config: RewardModelConfig,
        device: str | None = None,
        *,
        on_metrics: MetricSink = ignore_metrics,
    ):
        if not isinstance(model, RewardModel):
            raise ConfigError(
                f"Found a {type(model).__name__}, expected a RewardModel. Wrap it: RewardModel(config, base_model)."
            )
        require_arguments(config, RewardModelConfig, on_metrics=on_metrics)
        require_tokenizer(tokenizer)
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.on_metrics = on_metrics
        self.chat = ChatFormat(tokenizer)
        if model.body.config.pad_token_id is None:
            model.body.config.pad_token_id = tokenizer.pad_token_id
        self.training_client = AsyncTrainingClient(model, device=training_device(device))

    def train_on_preferences(
        self,
        chosen_texts: Sequence[str],
        rejected_texts: Sequence[str],
        num_epochs: int = 3,
        batch_size: int = 8,
        *,
        prompts: Sequence[Prompt] | None = None,
        eval_chosen_texts: Sequence[str] | None = None,
        eval_rejected_texts: Sequence[str] | None = None,
        eval_prompts: Sequence[Prompt] | None = None,
    ) -> dict[str, list[float]]:
        """Pass num_epochs times over the pairs, each time in a new order; optimiser and schedule begin anew.

        The loss of a pair is -log sigmoid(chosen - rejected), in nats (Bradley & Terry 1952). An optimiser step takes
        batch_size * config.gradient_accumulation_steps pairs, the last one of an epoch what is left. The weights are
        then those of the last step.

        Args:
            chosen_texts: N preferred texts: whole texts, or responses where there are prompts.
            rejected_texts: N others.
            num_epochs: 0 trains nothing.
            batch_size: pairs of one backward pass.
            prompts: N prompts, text or chat messages, shared by both sides of a pair.
            eval_chosen_texts, eval_rejected_texts, eval_prompts: held-out pairs, measured after each epoch.

        Returns:
            One value for each optimiser step, means over its pairs: loss, accuracy (a tie is no success), margin
            (reward units) and calibration_error. With held-out pairs also one for each epoch: eval_loss, eval_accuracy,
            eval_margin, eval_calibration_error.

        Raises:
            ConfigError: the model gives several rewards (see train_on_labels), or a number is out of range.
            DataError: the numbers of texts differ or are 0, a text is none or empty, or holds a token that the model
                does not know. Nothing was trained.
            TrainingDiverged: three optimiser steps in a row had a non-finite loss or gradient.
            DeviceMemoryError: the device has no room for a single pair.
        """
        self._require_one_reward()
        pairs = self._pairs(chosen_texts, rejected_texts, prompts)
        validation: RewardObjective | None = None
        if eval_chosen_texts is not None or eval_rejected_texts is not None:
            _require_alike(prompts, eval_prompts)
            validation = self._pairs(eval_chosen_texts or (), eval_rejected_texts or (), eval_prompts, "eval_")
        history = self._run(pairs, validation, num_epochs, batch_size)
        names = HISTORY if validation is None else HISTORY | EVALUATION
        return {name: history.get(metric, []) for name, metric in names.items()}

    def train_on_labels(
        self,
        texts: Sequence[Text],
        targets: Targets,
        num_epochs: int = 3,
        batch_size: int = 8,
        *,
        eval_texts: Sequence[Text] | None = None,
        eval_targets: Targets | None = None,
    ) -> dict[str, list[float]]:
        """Train a MultiObjectiveRewardModel on texts with a target for each objective, by weighted squared errors.

        Runs as train_on_preferences does; the loss is that of `rlcore.reward.labels.LabelledRows`.

        Args:
            texts: N whole texts, or (prompt, response).
            targets: [N, K], reward units; NaN or None is a missing label.
            num_epochs, batch_size: see train_on_preferences.
            eval_texts, eval_targets: held-out rows, measured after each epoch.

        Returns:
            One value for each optimiser step, means over its rows: loss, and objective_<k>_loss before the weight. With
            held-out rows also one for each epoch, with `eval_` in front.

        Raises:
            ConfigError: the model has one objective, or a number is out of range.
            DataError: the numbers of rows differ or are 0, a text is none or empty, a target is infinite, or an
                objective has no label at all. Nothing was trained.
            TrainingDiverged, DeviceMemoryError: see train_on_preferences.
        """
        rows = self._labels(texts, targets)
        validation: LabelledRows | None = None
        if eval_texts is not None or eval_targets is not None:
            validation = self._labels(eval_texts or (), () if eval_targets is None else eval_targets, "eval_")
        history = self._run(rows, validation, num_epochs, batch_size)
        losses = ["loss", *(f"objective_{index}_loss" for index in range(rows.targets.shape[1]))]
        names = {name: f"reward_model/{name}" for name in losses}
        if validation is not None:
            names |= {f"eval_{name}": f"validation/{name}" for name in losses}
        return {name: history.get(metric, []) for name, metric in names.items()}

    def evaluate(
        self,
        chosen_texts: Sequence[str],
        rejected_texts: Sequence[str],
        batch_size: int = 8,
        *,
        prompts: Sequence[Prompt] | None = None,
    ) -> dict[str, float]:
        """eval_loss, eval_accuracy, eval_margin and eval_calibration_error over all pairs, in evaluation mode.

        Raises:
            ConfigError, DataError: see train_on_preferences.
        """
        self._require_one_reward()
        _require_at_least(1, batch_size=batch_size)
        pairs = self._pairs(chosen_texts, rejected_texts, prompts)
        measures = evaluate_pairs(self.training_client, pairs, batch_size)
        return {name: measures[metric] for name, metric in EVALUATION.items()}

    def save_model(self, path: str | Path) -> Path:
        """Write the model, its config and the tokenizer; whatever was there is replaced in one step.

        Args:
            path: a file, such as "reward_model.pt": one safetensors file at exactly that path. An existing folder, or a
                path that ends in "/": a model folder, with adapters added to the weights.

        Returns:
            the path.

        Raises:
            CheckpointError: a weight holds NaN or infinity. What was there is untouched.
            OSError: the disk is full or fails. What was there is untouched.
        """
        as_folder = os.fspath(path).endswith(("/", os.sep)) or Path(path).is_dir()
        save = save_reward_model if as_folder else save_reward_file
        in_first_process(self.training_client, partial(save, self.model, self.tokenizer, Path(path)))
        return Path(path)

    def load_model(self, path: str | Path) -> None:
        """Give the model the weights that `save_model` wrote, and the trainer their tokenizer.

        Raises:
            CheckpointError: nothing is there, it is damaged or pickled, or it belongs to a model of another kind, shape
                or meaning. Nothing changed.
        """
        saved = read_saved(Path(path))
        self.training_client.evaluate(partial(load_weights, saved=saved)).result()
        self.tokenizer, self.chat = saved.tokenizer, ChatFormat(saved.tokenizer)

    def close(self) -> None:
        """Stop the training client. Idempotent."""
        self.training_client.shutdown()

    def _run(
        self, rows: PairObjective, validation: PairObjective | None, num_epochs: int, batch_size: int
    ) -> Mapping[str, list[float]]:
        _require_at_least(0, num_epochs=num_epochs)
        _require_at_least(1, batch_size=batch_size)
        settings = self.config.model_copy(update={"num_epochs": num_epochs, "batch_size": batch_size})
        plan = plan_of(settings, len(rows))
        run = PairRun(plan, self.training_client, rows, validation, on_metrics=self.on_metrics)
        with training_mode(self.model):
            return run.to_the_end()

    def _require_one_reward(self) -> None:
        if isinstance(self.model, MultiObjectiveRewardModel):
            raise ConfigError(
                "Found a MultiObjectiveRewardModel: a preference orders the combined reward and says nothing of its "
                "objectives. Use train_on_labels() with a target for each."
            )
        self.model.require_scalar()

    def _pairs(
        self, chosen: Sequence[str], rejected: Sequence[str], prompts: Sequence[Prompt] | None, prefix: str = ""
    ) -> RewardObjective:
        sides = {f"{prefix}chosen_texts": chosen, f"{prefix}rejected_texts": rejected}
        _require_equally_many(sides if prompts is None else {f"{prefix}prompts": prompts, **sides})
        pairs = TokenPairs(*(self._encoded(name, texts, prompts) for name, texts in sides.items()))
        return RewardObjective(pairs, self.chat.pad_id, self.config)

    def _labels(self, texts: Sequence[Text], targets: Targets, prefix: str = "") -> LabelledRows:
        if not isinstance(self.model, MultiObjectiveRewardModel):
            raise ConfigError(
                f"Found a {type(self.model).__name__}, expected a MultiObjectiveRewardModel, which has a target for "
                "each objective. Use train_on_preferences() for preference pairs."
            )
        _require_equally_many({f"{prefix}texts": texts, f"{prefix}targets": targets})
        rows = self._encoded(f"{prefix}texts", texts)
        count, pad_id, seed = self.model.num_objectives, self.chat.pad_id, self.config.seed
        return labelled_rows(rows, targets, count, pad_id=pad_id, seed=seed, owner=f"{prefix}targets")

    def _encoded(self, name: str, texts: Sequence[Text], prompts: Sequence[Prompt] | None = None) -> list[list[int]]:
        for row, text in enumerate(texts):
            last = text[-1] if isinstance(text, tuple | list) and text else text
            if not isinstance(last, str) or not last.strip():
                raise DataError(f"{name}, row {row}: found {text!r}, expected text. Drop or mend that row.")
        whole: Sequence[Any] = texts if prompts is None else list(zip(prompts, texts, strict=True))
        rows = encode_texts(self.chat, whole, min(self.config.max_length, self.model.max_length))
        largest, known = max(map(max, rows)), vocabulary_size(self.model.body)
        if largest >= known:
            raise DataError(
                f"{name}: found token {largest}, but the model knows {known}. Use the tokenizer of the model."
            )
        return rows


def _require_at_least(least: int, **settings: int) -> None:
    for name, value in settings.items():
        if value < least:
            raise ConfigError(f"{name}={value}: expected at least {least}.")


def _require_alike(prompts: Sequence[Prompt] | None, eval_prompts: Sequence[Prompt] | None) -> None:
    if (prompts is None) != (eval_prompts is None):
        raise DataError(
            "Found prompts for the pairs or for the held-out pairs alone, expected both or none: a response without "
            "its prompt is another text. Pass prompts and eval_prompts, or whole texts without either."
        )


def _require_equally_many(columns: Mapping[str, Sized]) -> None:
    require_lists(columns)
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise DataError(f"Found {found}, expected equally many of each, at least one.")
