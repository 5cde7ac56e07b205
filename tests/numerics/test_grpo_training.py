"""GRPO and RLOO as a whole: they learn, the first ratio is 1, micro-batches and interruptions change nothing."""

from typing import Any

import pytest
import torch

from rlcore.batches import join
from rlcore.grpo import GRPOTrainer
from rlcore.grpo.update import Experience, losses_of
from rlcore.rollout import turns
from tests.support.grpo import config, trainer
from tests.support.hotel import CALL, HotelEnv, hotel_config, hotel_tokenizer, hotel_trainer
from tests.support.ppo import PROMPTS
from tests.support.scripted import scripted_generate
from tests.support.tiny import tiny_llama

MEASURES = ("policy/first_ratio_mean", "policy/clip_fraction", "kl/update_token_mean")


def gain(scores: list[float]) -> tuple[float, float]:
    """Mean of the last five less that of the first five, and three standard errors of it."""
    first, last = torch.tensor(scores[:5]), torch.tensor(scores[-5:])
    return (last.mean() - first.mean()).item(), 3 * ((first.var() + last.var()) / 5).sqrt().item()


def scores_of(found: GRPOTrainer, *arguments: Any) -> list[float]:
    scores = found.train(*arguments)["rewards"]
    found.close()
    return scores


@pytest.mark.parametrize(
    ("seed", "estimator"),
    [(0, "group_relative"), (1, "group_relative"), (2, "group_relative"), (0, "leave_one_out"), (1, "leave_one_out")],
)
def test_the_score_rises_and_does_not_with_learning_rate_near_zero(seed: int, estimator: str):
    settings = {"seed": seed, "advantage_estimator": estimator, "num_iterations": 16, "batch_size": 32}
    learned, bound = gain(scores_of(trainer(config(**settings, learning_rate=5e-3)), PROMPTS))
    assert learned > bound
    idle, bound = gain(scores_of(trainer(config(**settings, learning_rate=1e-12)), PROMPTS))
    assert idle < bound


def test_a_policy_learns_to_use_a_tool():
    settings = hotel_config(num_iterations=20, batch_size=48, mini_batch_size=24, num_generations=8)
    learned, bound = gain(scores_of(hotel_trainer(settings)))
    # asking the desk is worth 0.5, and a random policy does it once in fifty times
    assert learned > max(bound, 0.3)


@pytest.mark.parametrize("make", [lambda settings: trainer(settings), hotel_trainer])
def test_before_the_first_update_the_ratio_is_one_and_nothing_is_clipped(make):
    seen: list[dict[str, float]] = []
    settings = hotel_config if make is hotel_trainer else config
    found = make(settings(num_iterations=1, grpo_epochs=1, batch_size=16, mini_batch_size=16, temperature=0.7))
    found.on_metrics = lambda step, metrics: seen.append(dict(metrics))
    found.train(PROMPTS if make is not hotel_trainer else None)
    found.close()
    ratio, clipped, drift = (seen[-1][name] for name in MEASURES)
    assert ratio == pytest.approx(1.0, abs=1e-6)
    assert clipped == 0
    assert drift == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("normalization", ["token", "sequence", "constant"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_make_the_gradient_of_one_batch(normalization: str, size: int):
    # 5 ragged rows of which one has the answer of a tool in it and one is left out
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, 48, (length,), generator=generator).tolist() for length in (5, 2, 7, 3, 1)]
    sampled = [[True] * len(row) for row in rows]
    sampled[2][2:4] = [False, False]
    sequences = join([[5, 6], [7], [8, 9, 10], [11], [12, 13]], rows, 0, sampled)
    shape = sequences.response_mask.shape
    old, ref = (torch.randn(shape, generator=generator) / 10 - 3.9 for _ in range(2))
    learned = sequences.response_mask & torch.tensor([True, True, True, False, True])[:, None]
    experience = Experience(sequences, old, ref, torch.tensor([1.0, -0.5, 0.3, 0.0, -0.8]), learned)
    settings = config(loss_normalization=normalization, max_new_tokens=7, kl_penalty_coef=0.5, clip_ratio=0.9)

    def gradient(size: int) -> tuple[float, dict[str, float], torch.Tensor]:
        model, total, sums = tiny_llama(), 0.0, {}
        loss_of_part = losses_of(experience, settings)(list(range(5)))
        for start in range(0, 5, size):
            loss, metrics = loss_of_part(list(range(5))[start : start + size])(model)
            loss.backward()
            total += loss.item()
            sums = {name: sums.get(name, 0.0) + float(value) for name, value in metrics.items()}
        return total, sums, torch.cat([weight.grad.flatten() for weight in model.parameters()])

    whole, parts = gradient(5), gradient(size)
    assert parts[0] == pytest.approx(whole[0], abs=1e-6)
    assert parts[1] == pytest.approx(whole[1], abs=1e-6)
    torch.testing.assert_close(parts[2], whole[2], rtol=1e-5, atol=1e-6)
    assert whole[2].abs().max() > 0.01


def test_a_scripted_call_is_run_read_scored_and_not_learned(monkeypatch):
    tokenizer = hotel_tokenizer()
    end, assistant = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|assistant|>")

    def script(context: list[int]) -> list[int]:
        said = CALL if context.count(assistant) == 1 else "room 2"
        return [*tokenizer(said)["input_ids"], end]

    monkeypatch.setattr(turns, "generate", scripted_generate(script))
    environment = HotelEnv(cases=3)
    found = hotel_trainer(hotel_config(batch_size=6, mini_batch_size=6, num_generations=2), environment)
    indices = found.choose(found.encode(found.environment_prompts()), 0)
    rollout = found.collect(found.encode(found.environment_prompts()), indices, ("rollout", 0))
    # cases 10, 11, 12 have rooms 2, 3, 1: asking is worth 0.5, and room 2 is right once
    assert sorted(rollout.scores.tolist()) == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]
    completion, case = environment.scored[0]
    assert [message["role"] for message in completion] == ["assistant", "tool", "assistant"]
    assert completion[1]["content"] == f"room {(case % 3) + 1} is free"
    # the call and its end; seven words of the answer, which have attention; room, 2 and the end
    assert rollout.response_mask[0].tolist() == [True] * 2 + [False] * 7 + [True] * 3
    assert rollout.sequences.attention_mask[0, -12:].tolist() == [1] * 12
    found.close()


def test_the_answer_of_a_tool_is_read_but_its_tokens_carry_no_gradient():
    model, logits = tiny_llama(), []

    def keep(module: torch.nn.Module, arguments: object, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
            logits.append(output)

    model.get_output_embeddings().register_forward_hook(keep)
    sampled = [[True, True, False, False, True], [True] * 3 + [False] * 2]
    loss_of([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]], sampled, model).backward()
    (gradient,) = [found.grad for found in logits if found.grad is not None]
    gradients = gradient.view(2, 5, -1).abs().amax(dim=-1)
    assert (gradients > 0).tolist() == sampled


def test_the_answer_of_a_tool_is_context_for_what_follows_and_a_label_of_nothing():
    first, second = [[5, 6, 7, 8, 9]], [[5, 6, 30, 31, 9]]
    behind = [[True, True, False, False, True]]
    assert loss_of(first, behind) != loss_of(second, behind)
    before = [[True, True, False, False, False]]
    assert loss_of(first, before) == loss_of(second, before)


def loss_of(rows: list[list[int]], sampled: list[list[bool]], model=None) -> torch.Tensor:
    """The loss of responses with advantages 1 and -1."""
    sequences = join([[11]] * len(rows), rows, 0, sampled)
    logprobs = torch.full(sequences.response_mask.shape, -3.8)
    advantages = torch.tensor([1.0, -1.0])[: len(rows)]
    experience = Experience(sequences, logprobs, logprobs, advantages, sequences.response_mask)
    every = list(range(len(rows)))
    return losses_of(experience, config())(every)(every)(model or tiny_llama())[0]
