"""One batch through TRL's losses and through ours, on the trainers that our settings make: equal to 1e-5."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer
from trl import GRPOTrainer

from rlcore.batches import Sequences, join, right_pad
from rlcore.dpo import PreferenceDataset
from rlcore.dpo.loss import response_sums
from rlcore.formatting import ChatFormat
from rlcore.functional.advantages import group_relative_advantages
from rlcore.functional.logprobs import token_logprobs
from rlcore.functional.losses import (
    bradley_terry_loss,
    centering_penalty,
    dpo_loss,
    orpo_loss,
    token_mean,
)
from rlcore.grpo.update import Experience, policy_losses
from rlcore.models import load_causal_lm, sampled_logprobs
from rlcore.trl_trainers import dpo, grpo, orpo, reward, sft
from tests.support import trl as small
from tests.support.dpo import COLUMNS
from tests.support.ppo import share_of_e
from tests.support.tiny import tiny_tokenizer

ROWS = 6
EVERYTHING = {"batch_size": ROWS}
CLOSE = {"rtol": 0.0, "atol": 1e-5}
"""Sums of up to 300 float32 terms in another order differ by a few 1e-6."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.start_folder(tmp_path_factory.mktemp("start"))


def trl_loss(trainer: Trainer, batch: Any = None) -> Tensor:
    """Of the whole data set as one batch, so that its order does not matter."""
    batch = next(iter(trainer.get_train_dataloader())) if batch is None else batch
    return trainer.compute_loss(trainer.model, batch).detach()


def pairs() -> PreferenceDataset:
    columns = [COLUMNS[name][:ROWS] for name in ("prompt", "chosen", "rejected")]
    return PreferenceDataset(*columns, tiny_tokenizer(), 64, 32)


def test_sft_is_the_mean_negative_log_probability_of_response_tokens(start: Path, tmp_path: Path):
    trainer = small.made_trainer(
        sft, small.sft_config(start, **EVERYTHING), small.split(small.DEMONSTRATIONS, ROWS), tmp_path
    )
    chat, model = ChatFormat(tiny_tokenizer()), load_causal_lm(start)
    rows = [
        chat.encode_pair(prompt, response, max_length=64)
        for prompt, response in zip(COLUMNS["prompt"][:ROWS], COLUMNS["chosen"][:ROWS], strict=True)
    ]
    sequences = join([prompt for prompt, _ in rows], [response for _, response in rows], chat.pad_id)
    ours = token_mean(-sampled_logprobs(model, sequences, 1.0), sequences.response_mask)
    torch.testing.assert_close(trl_loss(trainer), ours.detach(), **CLOSE)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_dpo(start: Path, tmp_path: Path, label_smoothing: float):
    reference = small.start_folder(tmp_path / "reference", seed=2)
    config = small.dpo_config(start, beta=0.3, label_smoothing=label_smoothing, **EVERYTHING)
    trainer = small.made_trainer(dpo, config, small.split(small.PAIRS, ROWS), tmp_path, reference=reference)
    batch = pairs().batch(range(ROWS), tiny_tokenizer().pad_token_id)
    with torch.no_grad():
        sums = [response_sums(load_causal_lm(folder), batch).chunk(2) for folder in (start, reference)]
    ours = dpo_loss(*sums[0], *sums[1], beta=0.3, label_smoothing=label_smoothing)
    # far from ln 2, where every margin would be 0
    assert abs(ours.item() - 0.6931) > 0.01
    torch.testing.assert_close(trl_loss(trainer), ours, **CLOSE)


def test_orpo(start: Path, tmp_path: Path):
    config = small.orpo_config(start, beta=0.7, **EVERYTHING)
    trainer = small.made_trainer(orpo, config, small.split(small.PAIRS, ROWS), tmp_path)
    model = load_causal_lm(start)
    batch = pairs().batch(range(ROWS), tiny_tokenizer().pad_token_id)
    with torch.no_grad():
        chosen, rejected = (response_sums(model, batch) / batch.response_mask.sum(dim=1)).chunk(2)
        # its supervised part reads the prompt too, and counts each token of the batch alike
        nll = whole_sequence_nll(
            model, [row["chosen_input_ids"].tolist() for row in map(pairs().__getitem__, range(ROWS))]
        )
    ours = orpo_loss(chosen, rejected, nll.expand(ROWS), odds_coef=0.7)
    torch.testing.assert_close(trl_loss(trainer), ours, **CLOSE)


def whole_sequence_nll(model: Any, rows: list[list[int]]) -> Tensor:
    ids, mask = right_pad(rows, 0)
    logits = model(input_ids=ids, attention_mask=mask).logits
    return token_mean(-token_logprobs(logits[:, :-1], ids[:, 1:]), mask[:, 1:].bool())


def test_reward(start: Path, tmp_path: Path):
    config = small.reward_config(start, center_rewards_coef=0.1, **EVERYTHING)
    trainer = small.made_trainer(reward, config, small.split(small.PAIRS, ROWS), tmp_path)
    # of the size that training reaches, so that the penalty counts
    trainer.model.score.weight.data.mul_(50)
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        scores = torch.stack(
            [
                trainer.model(input_ids=ids[mask.bool()][None]).logits.squeeze()
                for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
            ]
        )
    chosen, rejected = scores.chunk(2)
    penalty = centering_penalty(chosen, rejected, coef=0.1)
    assert penalty > 0.001
    torch.testing.assert_close(trl_loss(trainer, batch), bradley_terry_loss(chosen, rejected) + penalty, **CLOSE)


@pytest.mark.parametrize("normalization", ["token", "sequence", "constant"])
def test_grpo(start: Path, tmp_path: Path, normalization: str):
    config = small.grpo_config(start, loss_normalization=normalization, kl_penalty_coef=0.5, temperature=0.8)
    trainer = small.made_trainer(grpo, config, small.split(small.grpo_prompts(), 12), tmp_path, reward=share_of_e)
    model = load_causal_lm(start)
    sequences = some_responses()
    generator = torch.Generator().manual_seed(0)
    mask = sequences.response_mask
    with torch.no_grad():
        logprobs = sampled_logprobs(model, sequences, 0.8)
    # ratios on both sides of the clip range, and a reference elsewhere
    old, ref = (
        (logprobs + torch.randn(mask.shape, generator=generator) * spread).where(mask, 0.0) for spread in (0.3, 1.0)
    )
    advantages = torch.tensor([1.5, -0.5, 0.0, -1.0])
    part = Experience(sequences, old, ref, advantages, mask)
    policy, kl = policy_losses(logprobs, part, part.counts([0, 1, 2, 3]), config)
    assert kl > 0.01
    batch = trl_batch(sequences) | {"advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": ref}
    # in evaluation mode TRL divides by this batch alone
    trainer.model.eval()
    torch.testing.assert_close(trl_loss(trainer, batch), policy + kl, **CLOSE)


def test_grpo_advantages(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those of one iteration, whose rows TRL shuffles: compared in order of size."""
    scores: list[float] = []
    seen: list[Tensor] = []

    def count(prompts: list[str], responses: list[str], metadata: object = None) -> list[float | None]:
        fresh = [None if len(response) % 5 == 0 else float(len(response)) for response in responses]
        scores.extend(float("nan") if value is None else value for value in fresh)
        return fresh

    compute_loss = GRPOTrainer.compute_loss

    def watched(self: Trainer, model: Any, inputs: dict[str, Tensor], *rest: Any, **others: Any) -> Any:
        seen.append(inputs["advantages"])
        return compute_loss(self, model, inputs, *rest, **others)

    monkeypatch.setattr(GRPOTrainer, "compute_loss", watched)
    config = small.grpo_config(start, mini_batch_size=16, grpo_epochs=1, num_iterations=1)
    grpo.train(config, small.split(small.grpo_prompts(), 12), tmp_path / "model", reward=count)
    ours = group_relative_advantages(torch.tensor(scores), torch.arange(16) // 4, scaling="group")
    assert torch.tensor(scores).isnan().any()
    assert ours.abs().max() > 0.5
    torch.testing.assert_close(torch.cat(seen).sort().values, ours.sort().values, **CLOSE)


def some_responses() -> Sequences:
    """Four responses of 5, 2, 4 and 1 tokens, the last token of others' in the third."""
    chat = ChatFormat(tiny_tokenizer())
    prompts = [chat.encode_prompt(text) for text in ("What is 1 plus 2?", "What?", "3 plus 3?", "Sure?")]
    responses = [[40, 50, 60, 70, chat.end_id], [80, chat.end_id], [90, 100, 110, 120], [chat.end_id]]
    sampled = [[True] * 5, [True] * 2, [True, True, False, True], [True]]
    return join(prompts, responses, chat.pad_id, sampled)


def trl_batch(sequences: Sequences) -> dict[str, Tensor]:
    width = sequences.prompt_length
    attention = sequences.attention_mask
    return {
        "prompt_ids": sequences.input_ids[:, :width],
        "prompt_mask": attention[:, :width],
        "completion_ids": sequences.response_ids,
        "completion_mask": attention[:, width:],
        "tool_mask": sequences.response_mask.long(),
        "num_items_in_batch": sequences.response_mask.sum(),
    }
