"""Group-relative policy optimisation with TRL's GRPOTrainer: its loss and its loop, on responses that we sample."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlcore.configs import GRPOConfig
from rlcore.environments import EpisodeEnvironment
from rlcore.errors import ConfigError, DataError
from rlcore.forward_backward import in_each_process
from rlcore.grpo import GRPOTrainer
from rlcore.models import save_causal_lm
from rlcore.pair_training import require_splits
from rlcore.processes import launched_processes
from rlcore.results import MetricSink, SampleSink, TrainResult, ignore_metrics, ignore_samples
from rlcore.reward_functions import responses_per_prompt
from rlcore.rollout import EncodedPrompt, Response, Reward
from rlcore.run_folder import rows_sha256, weights_sha256
from rlcore.streams import stream_seed
from rlcore.trl_trainers.arguments import Plan, import_trl, refuse_settings, training_arguments
from rlcore.trl_trainers.metrics import OPTIMISER_NAMES, ReportCallback, renamed
from rlcore.trl_trainers.run import run

METRIC_NAMES = {
    "loss": "policy/total_loss",
    "kl": "kl/ref_k3_token_mean",
    "entropy": "policy/entropy_mean",
    "clip_ratio/region_mean": "policy/clip_fraction",
    "reward": "reward/score_mean",
    "frac_reward_zero_std": "reward/zero_spread_fraction",
    "completions/mean_length": "response/length_mean",
    **OPTIMISER_NAMES,
    "eval_reward": "validation/score_mean",
    "eval_completions/mean_length": "validation/length_mean",
}
UNSUPPORTED = ("advantage_estimator", "max_update_kl", "max_non_finite_steps")
LOSS_TYPES = {"token": "dapo", "sequence": "grpo", "constant": "dr_grpo"}
"""TRL's name of each loss_normalization."""
# Settings under which a resumed run still computes the same numbers.
_FREE_SETTINGS = {"device", "num_iterations", "save_every"}
_OBJECTIVE = "eval_objective"


def train(
    config: GRPOConfig,
    data: datasets.DatasetDict | None,
    output_dir: Path,
    *,
    reward: Reward | None = None,
    reference: object = None,
    environment: EpisodeEnvironment | None = None,
    resume_dir: Path | None = None,
    on_metrics: MetricSink = ignore_metrics,
    on_samples: SampleSink = ignore_samples,
) -> TrainResult:
    """Train a policy on `data["train"]` prompts and publish the best one on `data["validation"]`, else the last one.

    Prompts, responses, tools and scores come from rlcore.grpo; TRL computes advantages and loss, and updates. One thing
    differs: the token mean divides by the mean number of tokens of an iteration's optimiser steps,
    not by those of the step. A step of the trace is an iteration; its KL is that of the policies while updating, its
    lengths leave out what tools answered.

    Args:
        config: settings. Those of UNSUPPORTED are refused unless they are at their defaults.
        data: rows with a `prompt`; their other columns reach the reward source. None trains on the data set of the
            environment.
        output_dir: replaced by the new model folder, in one step.
        reward: scores the responses, in any form of `reward_source_of`; by their length when None.
        reference: refused; TRL reads it from config.model_name.
        environment: brings prompts, scores and tools in place of a reward.
        resume_dir: folder for checkpoints; a complete one in it is resumed from, bit for bit, as all lie between two
            iterations.
        on_metrics: sink for `reward/*`, `policy/*`, `response/*`, `validation/*` and `optim/*`.
        on_samples: gets the responses of each evaluation.

    Raises:
        ConfigError: a setting has no counterpart, batch sizes do not divide each other, or see GRPOTrainer.
        DataError: too few prompts for an iteration, or a reward source that returned something else than scores.
        CheckpointError: resume_dir holds another run.
        TrainingDiverged: a gradient is not finite.
    """
    refuse_settings(config, UNSUPPORTED, "GRPOTrainer")
    steps = _steps_per_iteration(config)
    if reference is not None:
        raise ConfigError(
            "Found a reference, but TRL's GRPOTrainer loads its own from model_name. Leave it out, or take the backend "
            "'own'."
        )
    own = GRPOTrainer(config, reward_fn=reward, environment=environment)
    _require_whole_groups(own)
    # TRL keeps a reference of its own.
    own.reference_model = own.training_client.reference_model = None
    rollouts = _Rollouts(own, _prompts_of(own, data), steps, on_samples)
    plan = _plan_of(config, steps, resume_dir, has_validation=bool(rollouts.prompts["validation"]))
    trl = import_trl()

    def make_trainer(folder: Path) -> Trainer:
        return trl.GRPOTrainer(
            model=own.model,
            reward_funcs=[score],
            args=_arguments(trl.GRPOConfig, config, plan, folder, len(rollouts.prompts["validation"])),
            train_dataset=rollouts.names("train"),
            eval_dataset=rollouts.names("validation") if plan.eval_every else None,
            processing_class=own.tokenizer,
            rollout_func=rollouts.sample,
            callbacks=[_Evaluation(rollouts, config.kl_penalty_coef)],
        )

    try:
        return run(
            make_trainer,
            partial(save_causal_lm, own.model, own.tokenizer),
            plan,
            {
                "config": config.model_dump(mode="json", exclude=_FREE_SETTINGS),
                "prompts": rollouts.sha256(),
                "start": weights_sha256(own.model.named_parameters()),
            },
            ReportCallback(on_metrics, partial(_translated, kl_coef=config.kl_penalty_coef), steps),
            model=own.model,
            output_dir=Path(output_dir),
            resume_dir=resume_dir,
        )
    finally:
        own.close()


def score(prompts: list[str], completions: list[str], score: list[float], **_: Any) -> list[float]:
    """TRL's reward function: what the rollout has already scored."""
    return score


class _Rollouts:
    """What TRL's trainer learns from, sampled and scored by our own.

    Rows of a data set are names of prompts, as TRL hands nothing else on.
    """

    def __init__(
        self,
        own: GRPOTrainer,
        prompts: Mapping[str, list[EncodedPrompt]],
        steps_per_iteration: int,
        on_samples: SampleSink,
    ):
        self.own, self.prompts, self.on_samples = own, prompts, on_samples
        self.steps_per_iteration = steps_per_iteration
        self._read: dict[int, dict[str, Any]] = {}

    def names(self, split: str) -> datasets.Dataset:
        """The rows of a split."""
        return datasets.Dataset.from_dict({"prompt": [f"{split}/{row}" for row in range(len(self.prompts[split]))]})

    def sha256(self) -> dict[str, str]:
        """Hashes of the prompts with all their columns, by split."""
        return {
            split: rows_sha256([prompt.ids, dict(prompt.metadata)] for prompt in prompts)
            for split, prompts in self.prompts.items()
        }

    def sample(self, names: list[str], trainer: Trainer) -> dict[str, Any]:
        """Responses, one for each name, in TRL's form, with their scores."""
        split = names[0].partition("/")[0]
        rows, seeds = self._rows_and_seeds(split, names, trainer)
        asked = [self.prompts[split][row] for row in rows]
        client = self.own.training_client
        responses, scores = in_each_process(client, lambda: self._judged(asked, seeds))[client.processes.rank]
        if split == "validation":
            self._read |= zip(rows, map(_readable, asked, responses, scores), strict=True)
        return {
            "prompt_ids": [prompt.ids for prompt in asked],
            "completion_ids": [response.ids for response in responses],
            "env_mask": [[int(sampled) for sampled in response.sampled] for response in responses],
            "logprobs": None,
            "score": scores,
        }

    def hand_over(self, step: int) -> None:
        """Give the responses of an evaluation to `on_samples`, each once, in the order of the prompts."""
        own_rows, self._read = self._read, {}
        client = self.own.training_client
        rows: dict[int, dict[str, Any]] = {}
        for share in in_each_process(client, lambda: own_rows):
            rows |= share
        if client.processes.is_first:
            self.on_samples(step // self.steps_per_iteration, [rows[row] for row in sorted(rows)])

    def _judged(self, asked: list[EncodedPrompt], seeds: list[int]) -> tuple[list[Response], list[float]]:
        """Responses of this process and their scores."""
        own = self.own
        responses = own.respond(asked, own.params, seeds)
        scores, _ = own.score(asked, responses)
        missing = own.config.missing_eos_score
        if missing is None:
            return responses, scores
        judged = zip(scores, responses, strict=True)
        return responses, [score if response.terminated else missing for score, response in judged]

    def _rows_and_seeds(self, split: str, names: list[str], trainer: Trainer) -> tuple[list[int], list[int]]:
        """Prompts of this process and a random stream for each, which depend on the iteration and the row alone.

        In training the prompts are of our own choice: TRL's order starts anew when a run is taken up.
        """
        seed = self.own.config.seed
        if split == "validation":
            rows = [int(name.partition("/")[2]) for name in names]
            return rows, [stream_seed(seed, split, 0, row) for row in rows]
        iteration = trainer.state.global_step // self.steps_per_iteration
        first = trainer.accelerator.process_index * len(names)
        places = range(first, first + len(names))
        chosen = self.own.choose(self.prompts[split], iteration)
        return [chosen[place] for place in places], [stream_seed(seed, "rollout", iteration, place) for place in places]


class _Evaluation(TrainerCallback):
    """The objective by which the best step is chosen, and the responses behind it."""

    def __init__(self, rollouts: _Rollouts, kl_coef: float):
        self.rollouts, self.kl_coef = rollouts, kl_coef

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        metrics = kwargs["metrics"]
        metrics[_OBJECTIVE] = _translated(metrics, self.kl_coef)["validation/objective"]
        self.rollouts.hand_over(state.global_step)


def _translated(logs: Mapping[str, Any], kl_coef: float) -> dict[str, float]:
    metrics = renamed(METRIC_NAMES)(logs)
    for prefix, topic in (("", "response"), ("eval_", "validation")):
        if f"{prefix}completions/clipped_ratio" in logs:
            metrics[f"{topic}/eos_fraction"] = 1 - logs[f"{prefix}completions/clipped_ratio"]
    if "validation/score_mean" in metrics:
        # k3 per token times tokens per response
        kl = logs.get("eval_kl", 0.0) * metrics["validation/length_mean"]
        metrics["validation/ref_sequence_mean"] = kl
        metrics["validation/objective"] = metrics["validation/score_mean"] - kl_coef * kl
    return metrics


def _steps_per_iteration(config: GRPOConfig) -> int:
    rows_per_step = config.mini_batch_size * config.gradient_accumulation_steps
    if config.batch_size % rows_per_step:
        raise ConfigError(
            f"batch_size={config.batch_size}: TRL's GRPOTrainer takes whole optimiser steps of mini_batch_size * "
            f"gradient_accumulation_steps = {rows_per_step} responses. Use a multiple of {rows_per_step}."
        )
    return config.batch_size // rows_per_step * config.grpo_epochs


def _require_whole_groups(own: GRPOTrainer) -> None:
    """Let a reward that compares the responses to a prompt see all of them in one process.

    Raises:
        ConfigError: the processes would share them out.
    """
    config, count = own.config, launched_processes().count
    if responses_per_prompt(own.reward) > 1 and config.batch_size % (count * config.num_generations):
        raise ConfigError(
            f"batch_size={config.batch_size}, num_generations={config.num_generations}: found a reward that compares "
            f"the responses to a prompt, which {count} processes would split. Make batch_size a multiple of "
            f"{count * config.num_generations}."
        )


def _prompts_of(own: GRPOTrainer, data: datasets.DatasetDict | None) -> dict[str, list[EncodedPrompt]]:
    if data is not None:
        require_splits(data)
    rows: Any = own.environment_prompts() if data is None else data["train"]
    validation: Any = () if data is None else data.get("validation", ())
    prompts = {
        "train": own.encode(rows),
        "validation": own.held_out(validation)[: own.config.eval_prompts] if len(validation) else [],
    }
    needed = own.config.batch_size // own.config.num_generations
    if len(prompts["train"]) < needed:
        raise DataError(
            f"Found {len(prompts['train'])} prompts, expected at least the {needed} of an iteration, batch_size / "
            "num_generations. Pass more, or lower batch_size."
        )
    return prompts


def _plan_of(config: GRPOConfig, steps: int, resume_dir: Path | None, *, has_validation: bool) -> Plan:
    """All intervals are whole iterations: TRL keeps no responses in a checkpoint, so it could not go on within one."""
    return Plan(
        total_steps=config.num_iterations * steps,
        batch_size=config.mini_batch_size,
        logging_steps=steps,
        save_every=None if resume_dir is None else config.save_every * steps,
        eval_every=config.eval_every * steps if has_validation else None,
        best_metric=_OBJECTIVE,
    )


def _arguments(arguments: Any, config: GRPOConfig, plan: Plan, folder: Path, validation_prompts: int) -> Any:
    common = training_arguments(config, plan, folder, config.device)
    batches = config.batch_size // config.mini_batch_size
    common["per_device_eval_batch_size"] = _even_batch_size(
        common["per_device_eval_batch_size"] * batches, validation_prompts
    )
    return arguments(
        **common,
        lr_scheduler_type="constant",
        adam_epsilon=config.adam_eps,
        steps_per_generation=batches,
        num_generations=config.num_generations,
        num_generations_eval=1,
        num_iterations=config.grpo_epochs,
        max_completion_length=config.max_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        beta=config.kl_penalty_coef,
        use_bias_correction_kl=False,
        epsilon=config.clip_ratio,
        loss_type=LOSS_TYPES[config.loss_normalization],
        scale_rewards=config.advantage_scaling,
        mask_truncated_completions=config.mask_truncated,
        disable_dropout=True,
    )


def _even_batch_size(most: int, rows: int) -> int:
    """Rows of an evaluation batch of one process, at most so many, that make the batches as equal as can be.

    TRL takes means of batches, and repeats rows where a batch is too short for all processes to have as many.
    """
    if rows == 0:
        return most
    count = launched_processes().count
    rounds = math.ceil(rows / (most * count))
    return math.ceil(rows / (rounds * count))


def _readable(prompt: EncodedPrompt, response: Response, score: float) -> dict[str, Any]:
    return {
        "prompt": prompt.text,
        "response": response.text,
        "finished": response.terminated,
        "score": score,
        **prompt.metadata,
    }
