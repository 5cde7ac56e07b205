"""What TRL's trainers on preference pairs share: pairs tokenised by our own formatter, steps, answers to read."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import datasets
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from rlcore.configs import DPOConfig, ORPOConfig
from rlcore.dpo import PreferenceDataset
from rlcore.dpo.answers import hand_over_answers
from rlcore.dpo.dataset import pairs_of
from rlcore.formatting import ChatFormat
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.models import CausalLM, add_lora, load_causal_lm, seeded
from rlcore.pair_training import preference_splits, read_each
from rlcore.results import RewardSource, SampleSink
from rlcore.trl_trainers.arguments import Plan, cosine_schedule, training_arguments

PairConfig = DPOConfig | ORPOConfig

# Settings under which a resumed run still computes the same numbers.
FREE_SETTINGS = {"device", "logging_steps", "save_every", "eval_prompts"}
# A trainer is made with texts, which it tokenises in a way of its own: one pair will do, as its rows are replaced.
TEXTS = {"prompt": ["Which?"], "chosen": [" this"], "rejected": [" that"]}


def read_pairs(
    data: datasets.DatasetDict, tokenizer: PreTrainedTokenizerBase, config: PairConfig, reward: RewardSource | None
) -> dict[str, PreferenceDataset]:
    """The pairs of `data["train"]` and, where there are any, of `data["validation"]`.

    Raises:
        ConfigError: there is a reward source.
        DataError: a split or column is missing; see also PreferenceDataset.
    """
    return read_each(preference_splits(data, reward), lambda columns: pairs_of(columns, tokenizer, config))


def start_model(config: PairConfig, pairs: dict[str, PreferenceDataset]) -> CausalLM:
    """The policy before training, with adapters where the settings ask for them.

    Raises:
        ConfigError: there is no such model, or a pair is longer than its context.
        DataError: a token is not in its vocabulary.
    """
    model = load_causal_lm(config.model_name)
    for split, rows in pairs.items():
        rows.require_readable(f"Split {split}", model, config.max_length)
    if config.lora is None:
        return model
    with seeded(config.seed):
        return add_lora(cast(PreTrainedModel, model), config.lora)


def plan_of(config: PairConfig, pairs: dict[str, PreferenceDataset], resume_dir: Path | None) -> Plan:
    """The steps of a run."""
    pairs_per_step = config.batch_size * config.gradient_accumulation_steps
    return Plan(
        total_steps=math.ceil(len(pairs["train"]) / pairs_per_step) * config.num_epochs,
        batch_size=config.batch_size,
        logging_steps=config.logging_steps,
        save_every=None if resume_dir is None else config.save_every,
        eval_every=config.eval_every if "validation" in pairs else None,
    )


def pair_arguments(config: PairConfig, plan: Plan, folder: Path) -> dict[str, Any]:
    """Keywords that the configs of all trainers on pairs take."""
    # The first step of a warm-up has rate 0 in TRL, so a run of one step would train nothing.
    warmup_steps = min(math.ceil(config.warmup_ratio * plan.total_steps), max(plan.total_steps - 1, 0))
    return {
        **training_arguments(config, plan, folder, config.device),
        **cosine_schedule(config.min_learning_rate_ratio, warmup_steps),
        "beta": config.beta,
        "disable_dropout": True,
    }


def identity_of(config: PairConfig, pairs: dict[str, PreferenceDataset]) -> dict[str, Any]:
    """What must be the same for a checkpoint to belong to a run, but for the weights it started from."""
    return {
        "config": config.model_dump(mode="json", exclude=FREE_SETTINGS),
        "pairs": {split: rows.sha256() for split, rows in pairs.items()},
    }


def trainer_on_pairs(
    trainer_class: Callable[..., Trainer],
    pairs: dict[str, PreferenceDataset],
    rows_of: Callable[[PreferenceDataset], datasets.Dataset],
    **arguments: Any,
) -> Trainer:
    """A trainer of that class, made with the arguments, on what rows_of makes of the pairs."""
    texts, has_validation = datasets.Dataset.from_dict(TEXTS), "validation" in pairs
    trainer = trainer_class(train_dataset=texts, eval_dataset=texts if has_validation else None, **arguments)
    trainer.train_dataset = rows_of(pairs["train"])
    trainer.eval_dataset = rows_of(pairs["validation"]) if has_validation else None
    return trainer


def token_rows(pairs: PreferenceDataset) -> list[dict[str, list[int]]]:
    """Token ids of the prompt, the chosen and the rejected response of each pair."""
    rows = []
    for index in range(len(pairs)):
        item: Any = pairs[index]
        start = item["prompt_length"]
        responses = {side: item[f"{side}_input_ids"][start:].tolist() for side in ("chosen", "rejected")}
        rows.append({"prompt": pairs.prompt_ids(index), **responses})
    return rows


class AnswerCallback(TrainerCallback):
    """Answer some validation prompts at each evaluation.

    Args:
        pairs: their prompts are answered; None where there is no evaluation.
        tokenizer: of the policy.
        config: how many, how long, seed.
        on_samples: gets the answers; of several processes the first one reports.
    """

    def __init__(
        self,
        pairs: PreferenceDataset | None,
        tokenizer: PreTrainedTokenizerBase,
        config: PairConfig,
        on_samples: SampleSink,
    ):
        self.pairs, self.chat, self.config, self.on_samples = pairs, ChatFormat(tokenizer), config, on_samples

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Sample one answer to each prompt."""
        with AsyncTrainingClient(kwargs["model"]) as client:
            hand_over_answers(client, self.chat, self.pairs, self.config, state.global_step, self.on_samples)
