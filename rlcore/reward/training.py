"""The training loop of a reward model. A run that was interrupted goes on as if nothing had happened, bit for bit."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor

from rlcore.checkpoint import latest_checkpoint, load_checkpoint, pack_optimizer, save_checkpoint, unpack_optimizer
from rlcore.configs import RewardModelConfig
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import require_single_process
from rlcore.functional.losses import bradley_terry_loss, centering_penalty, preference_accuracy
from rlcore.health import NonFiniteGuard
from rlcore.models import CausalLM, choose_device, evaluation_mode, load_tokenizer
from rlcore.results import MetricSink, RewardSource, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.reward.files import save_reward_model
from rlcore.reward.model import RewardModel
from rlcore.reward.normalization import normalize_rewards
from rlcore.reward.pairs import TokenPairs, encode_pairs, epoch_batches
from rlcore.run_folder import checkpoint_folder, require_same_run
from rlcore.schedule import learning_rate_share
from rlcore.streams import stream_seed

MAX_NON_FINITE_STEPS = 3
# Settings under which a resumed run still computes the same numbers.
_FREE_SETTINGS = {"device", "save_steps", "logging_steps"}

logger = logging.getLogger(__name__)


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
        ConfigError: settings contradict each other, or several processes were launched.
        DataError: a column or a row is missing or has the wrong form.
        CheckpointError: resume_dir holds another run, or no whole checkpoint.
        TrainingDiverged: too many steps in a row were not finite.
    """
    require_single_process("The reward trainer")
    _refuse_contradictions(config, data, reward, reference)
    device = choose_device(config.device)
    tokenizer = load_tokenizer(config.model_name)
    model = RewardModel(config).to(device)
    model.body.config.pad_token_id = tokenizer.pad_token_id
    chat = ChatFormat(tokenizer)
    splits = [split for split in ("train", "validation") if split in data]
    pairs = {split: encode_pairs(chat, data[split].to_dict(), model.max_length) for split in splits}
    output_dir = Path(output_dir)
    with checkpoint_folder(resume_dir, output_dir) as folder:
        run = _Run(model, chat.pad_id, pairs, folder, on_metrics, save_steps=config.save_steps if resume_dir else None)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            run.to_the_end()
        run.load_best()
    model = model.merged()
    if config.reference_samples and reference is not None:
        rows = normalize_rewards(model, tokenizer, reference, list(data["train"]["prompt"]), config)
        on_samples(run.step, rows)
    save_reward_model(model, tokenizer, output_dir)
    return TrainResult(output_dir, run.best_step, run.last_metrics, run.best_metrics)


@torch.inference_mode()
def evaluate_pairs(model: RewardModel, pairs: TokenPairs, batch_size: int, pad_id: int) -> dict[str, float]:
    """Bradley-Terry loss, strict accuracy and mean margin over all pairs, in evaluation mode."""
    totals: dict[str, float] = {}
    order = pairs.by_length()
    with evaluation_mode(model):
        for start in range(0, len(order), batch_size):
            chosen, rejected = _rewards(model, pairs, order[start : start + batch_size], pad_id)
            _add(totals, _pair_metrics(chosen, rejected, len(pairs)))
    return totals


class _Run:
    """One training run: where it is, what it has seen since the last report, what was best."""

    def __init__(
        self,
        model: RewardModel,
        pad_id: int,
        pairs: Mapping[str, TokenPairs],
        folder: Path,
        on_metrics: MetricSink,
        *,
        save_steps: int | None,
    ):
        self.config = model.config
        self.model, self.pad_id, self.folder = model, pad_id, folder
        self.pairs, self.validation = pairs["train"], pairs.get("validation")
        self.on_metrics, self.save_steps = on_metrics, save_steps
        batches = math.ceil(len(self.pairs) / self.config.batch_size)
        self.steps_per_epoch = math.ceil(batches / self.config.gradient_accumulation_steps)
        self.total_steps = self.steps_per_epoch * self.config.num_epochs
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.weights, lr=self.config.learning_rate, weight_decay=self.config.weight_decay, fused=True
        )
        self.guard = NonFiniteGuard(MAX_NON_FINITE_STEPS)
        # What must be the same for a checkpoint to belong to this run.
        self.identity = {
            "config": self.config.model_dump(mode="json", exclude=_FREE_SETTINGS),
            "pairs": {split: rows.sha256() for split, rows in pairs.items()},
        }
        self.step = 0
        self.optim_metrics: dict[str, float] = {}
        self.window: dict[str, float] = {}
        self.window_pairs = 0
        self.best_step = 0
        self.best_metrics: dict[str, float] = {}
        self.last_metrics: dict[str, float] = {}

    def to_the_end(self) -> None:
        """Take up the newest checkpoint, if any, and train what is left."""
        self._resume()
        self.on_metrics(self.step, {"progress/total_steps": float(self.total_steps)})
        epoch_order: tuple[int, list[list[int]]] = (-1, [])
        while self.step < self.total_steps:
            epoch, position = divmod(self.step, self.steps_per_epoch)
            if epoch_order[0] != epoch:
                batches = epoch_batches(len(self.pairs), self.config.batch_size, self.config.seed, epoch)
                epoch_order = (epoch, batches)
            first = position * self.config.gradient_accumulation_steps
            self._optimize(epoch_order[1][first : first + self.config.gradient_accumulation_steps])
            self.step += 1
            self._after_step()

    def load_best(self) -> None:
        """Put back the weights of the best epoch."""
        if self.validation is None or self.best_step == 0:
            self.best_step, self.best_metrics = self.step, dict(self.last_metrics)
        elif self.best_step != self.step:
            self._load_weights(load_checkpoint(self.folder / f"step-{self.best_step}").tensors["model"])

    def _after_step(self) -> None:
        last = self.step == self.total_steps
        if last or self.step % self.config.logging_steps == 0:
            self._report()
        improved = self.step % self.steps_per_epoch == 0 and self._validate()
        due = self.save_steps is not None and (last or self.step % self.save_steps == 0)
        if improved or due:
            self._save()

    def _optimize(self, batches: list[list[int]]) -> None:
        """One optimiser step over all pairs of the batches, which may be fewer than usual at the end of an epoch."""
        torch.manual_seed(stream_seed(self.config.seed, "dropout", self.step))
        share = learning_rate_share(self.step, self.config.warmup_steps, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * share
        pair_count = sum(map(len, batches))
        total_loss = 0.0
        metrics: dict[str, float] = {}
        self.model.train()
        for batch in batches:
            chosen, rejected = _rewards(self.model, self.pairs, batch, self.pad_id)
            loss = bradley_terry_loss(chosen, rejected, pair_count=pair_count)
            if self.config.center_rewards_coef:
                coef = self.config.center_rewards_coef
                loss = loss + centering_penalty(chosen, rejected, coef=coef, pair_count=pair_count)
            torch.autograd.backward(loss)
            total_loss += loss.item()
            _add(metrics, _pair_metrics(chosen.detach(), rejected.detach(), pair_count))
        grad_norm = torch.nn.utils.clip_grad_norm_(self.weights, self.config.max_grad_norm).item()
        self.optim_metrics = {"optim/learning_rate": self.config.learning_rate * share}
        if self.guard.accepts(loss=total_loss, grad_norm=grad_norm):
            self.optimizer.step()
            self.optim_metrics["optim/grad_norm"] = grad_norm
            _add(self.window, {name: value * pair_count for name, value in metrics.items()})
            self.window_pairs += pair_count
        self.optimizer.zero_grad(set_to_none=True)
        self.optim_metrics["optim/non_finite_steps"] = float(self.guard.skipped)

    def _report(self) -> None:
        """The last step's figures and means over the pairs since the last report.

        Where no step was finite there is no mean, rather than an old one.
        """
        means = {name: value / self.window_pairs for name, value in self.window.items()}
        self.window, self.window_pairs = {}, 0
        self.last_metrics = {**means, **self.optim_metrics}
        self.on_metrics(self.step, self.last_metrics)

    def _validate(self) -> bool:
        """Measure the validation pairs; whether the loss is the least so far."""
        if self.validation is None:
            return False
        metrics = evaluate_pairs(self.model, self.validation, self.config.batch_size, self.pad_id)
        metrics = {f"validation/{name.split('/')[1]}": value for name, value in metrics.items()}
        self.on_metrics(self.step, metrics)
        self.last_metrics = {**self.last_metrics, **metrics}
        best = self.best_metrics.get("validation/loss", math.inf)
        if not metrics["validation/loss"] < best:
            return False
        self.best_step, self.best_metrics = self.step, dict(self.last_metrics)
        return True

    def _save(self) -> None:
        optimizer_tensors, optimizer_state = pack_optimizer(self.optimizer)
        state: dict[str, Any] = {
            "identity": self.identity,
            "optimizer": optimizer_state,
            "guard": self.guard.state_dict(),
            "window": self.window,
            "window_pairs": self.window_pairs,
            "best_step": self.best_step,
            "best_metrics": self.best_metrics,
            "last_metrics": self.last_metrics,
        }
        tensors = {"model": self._trained(), "optimizer": optimizer_tensors}
        save_checkpoint(self.folder, self.step, tensors, state, keep={self.best_step})

    def _resume(self) -> None:
        path = latest_checkpoint(self.folder)
        if path is None:
            return
        checkpoint = load_checkpoint(path)
        state: Mapping[str, Any] = checkpoint.state
        require_same_run(path, state["identity"], self.identity)
        self._load_weights(checkpoint.tensors["model"])
        unpack_optimizer(self.optimizer, checkpoint.tensors["optimizer"], state["optimizer"])
        self.guard.load_state_dict(state["guard"])
        self.step = checkpoint.step
        self.window, self.window_pairs = state["window"], state["window_pairs"]
        self.best_step, self.best_metrics = state["best_step"], state["best_metrics"]
        self.last_metrics = state["last_metrics"]
        logger.info("Resumed at step %d of %d.", self.step, self.total_steps)

    def _trained(self) -> dict[str, Tensor]:
        """Weights that training changes. Frozen ones come from the body's own folder."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def _load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, weight in self._trained().items():
                weight.copy_(tensors[name])


def _rewards(model: RewardModel, pairs: TokenPairs, batch: list[int], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rewards of the chosen and of the rejected responses of a batch, both [N], from one forward pass."""
    device = model.head.weight.device
    input_ids, mask = (tensor.to(device, non_blocking=True) for tensor in pairs.batch(batch, pad_id))
    rewards = model.scores(input_ids, mask)
    return rewards[: len(batch)], rewards[len(batch) :]


def _pair_metrics(chosen: Tensor, rejected: Tensor, pair_count: int) -> dict[str, float]:
    """The batch's part of the means over pair_count pairs."""
    means = {
        "reward_model/loss": bradley_terry_loss(chosen, rejected, pair_count=pair_count),
        "reward_model/accuracy": preference_accuracy(chosen, rejected, pair_count),
        "reward_model/margin_mean": (chosen - rejected).sum() / pair_count,
    }
    # one transfer from the device instead of three
    return dict(zip(means, torch.stack(list(means.values())).tolist(), strict=True))


def _add(totals: dict[str, float], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        totals[name] = totals.get(name, 0.0) + value


def _refuse_contradictions(
    config: RewardModelConfig, data: Mapping[str, object], reward: object, reference: object
) -> None:
    if "train" not in data:
        raise DataError(f"Found the splits {sorted(data)}, expected train. Name the preference pairs so.")
    if config.num_labels != 1:
        raise ConfigError(f"num_labels={config.num_labels}: expected 1, as a preference pair orders one reward.")
    if reward is not None:
        raise ConfigError("Found a reward source, expected none: preference pairs are the only signal. Leave it out.")
    if config.reference_samples == 1:
        raise ConfigError("reference_samples=1: expected 0, or at least 2 to have a deviation.")
    if config.reference_samples and reference is None:
        raise ConfigError(
            f"reference_samples={config.reference_samples}: found no reference to sample from. "
            "Pass the supervised model, or set reference_samples to 0."
        )
