"""Training a reward model on preference pairs, as a stage of the pipeline."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import datasets
from torch import nn

from rlcore.configs import RewardModelConfig
from rlcore.errors import ConfigError
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient, in_first_process, training_device
from rlcore.models import CausalLM, load_tokenizer
from rlcore.pair_training import PairPlan, PairRun, preference_splits, read_each, shared_checkpoint_folder
from rlcore.results import MetricSink, RewardSource, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.reward.files import save_reward_model
from rlcore.reward.model import RewardModel
from rlcore.reward.normalization import normalize_rewards
from rlcore.reward.objective import RewardObjective
from rlcore.reward.pairs import TokenPairs, encode_pairs
from rlcore.run_folder import weights_sha256

# Settings under which a resumed run still computes the same numbers.
_FREE_SETTINGS = {"device", "save_steps", "logging_steps"}


def train(
    config: RewardModelConfig,
    data: datasets.DatasetDict,
    output_dir: Path,
    *,
    reward: RewardSource | None = None,
    reference: str | Path | CausalLM | None = None,
    resume_dir: Path | None = None,
    on_metrics: MetricSink = ignore_metrics,
    on_samples: SampleSink = ignore_samples,
) -> TrainResult:
    """Train a reward model on `data["train"]`, columns prompt, chosen, rejected; publish it as output_dir.

    The published weights are those of the epoch with the least loss on `data["validation"]`, else the last ones.
    Launched in several processes, these share the pairs; batch_size counts those of all.

    Args:
        config: settings; `model_name` is the body.
        data: preference pairs.
        output_dir: replaced by the new model folder, in one step.
        reward: refused; preference pairs are the only signal.
        reference: causal language model, or its folder, on whose responses rewards become mean 0 and deviation 1.
            Needed with `config.reference_samples`.
        resume_dir: folder for checkpoints; an interrupted run in it is taken up.
        on_metrics, on_samples: get the numbers, and the responses of the reference with their scores.

    Raises:
        ConfigError: settings contradict each other.
        DataError: a column or a row is missing or has the wrong form.
        CheckpointError: resume_dir holds another run, or no whole checkpoint.
        TrainingDiverged: too many steps in a row were not finite.
        DeviceMemoryError: the device has no room for a single pair.
    """
    splits = preference_splits(data, reward)
    _refuse_contradictions(config, reference)
    device = training_device(config.device)
    tokenizer = load_tokenizer(config.model_name)
    model = RewardModel(config)
    model.body.config.pad_token_id = tokenizer.pad_token_id
    chat = ChatFormat(tokenizer)
    pairs = read_each(splits, lambda columns: encode_pairs(chat, columns, model.max_length))
    output_dir = Path(output_dir)
    with (
        AsyncTrainingClient(model, device=device) as client,
        shared_checkpoint_folder(client, resume_dir, output_dir) as folder,
    ):
        objectives = {split: RewardObjective(rows, chat.pad_id, config) for split, rows in pairs.items()}
        run = PairRun(
            plan_of(config, len(pairs["train"]), save_every=config.save_steps if resume_dir else None),
            client,
            objectives["train"],
            objectives.get("validation"),
            folder=folder,
            identity=_identity(config, model, pairs),
            on_metrics=on_metrics,
        )
        with training_mode(model):
            run.to_the_end()
        run.load_best()
        model = model.merged()
        if config.reference_samples and reference is not None:
            rows = normalize_rewards(client, model, tokenizer, reference, list(splits["train"]["prompt"]), config)
            if client.processes.is_first:
                on_samples(run.step, rows)
        in_first_process(client, partial(save_reward_model, model, tokenizer, output_dir))
    return TrainResult(output_dir, run.best_step, run.last_metrics, run.best_metrics)


def plan_of(config: RewardModelConfig, pair_count: int, *, save_every: int | None = None) -> PairPlan:
    """The plan of a run over pair_count pairs, evaluated after each epoch."""
    return PairPlan(
        pair_count=pair_count,
        pairs_per_step=config.batch_size * config.gradient_accumulation_steps,
        micro_batch_size=config.batch_size,
        num_epochs=config.num_epochs,
        seed=config.seed,
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        logging_steps=config.logging_steps,
        save_every=save_every,
    )


@contextlib.contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Training mode inside, dropout included; every submodule's own mode again afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _identity(config: RewardModelConfig, model: RewardModel, pairs: Mapping[str, TokenPairs]) -> dict[str, object]:
    """What must be the same for a checkpoint to belong to a run."""
    return {
        "config": config.model_dump(mode="json", exclude=_FREE_SETTINGS),
        "pairs": {split: rows.sha256() for split, rows in pairs.items()},
        "start": weights_sha256(model.named_parameters()),
    }


def _refuse_contradictions(config: RewardModelConfig, reference: object) -> None:
    if config.num_labels != 1:
        raise ConfigError(f"num_labels={config.num_labels}: expected 1, as a preference pair orders one reward.")
    if config.reference_samples == 1:
        raise ConfigError("reference_samples=1: expected 0, or at least 2 to have a deviation.")
    if config.reference_samples and reference is None:
        raise ConfigError(
            f"reference_samples={config.reference_samples}: found no reference to sample from. "
            "Pass the supervised model, or set reference_samples to 0."
        )
