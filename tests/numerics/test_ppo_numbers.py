"""What PPO computes between sampling and stepping, worked out by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

from rlcore.batches import join
from rlcore.models import ResponseOutputs
from rlcore.ppo.update import Experience, experience_of, ppo_loss, value_warmup_loss
from tests.support.ppo import PROMPTS, make_critic_speak, running, share_of_e, tiny_config
from tests.support.rollouts import measured, rollout


def whitened(advantages: list[float]) -> list[float]:
    """Less their mean, over their population deviation; 1e-8 keeps equal ones from being divided by 0."""
    mean = sum(advantages) / len(advantages)
    variance = sum((each - mean) ** 2 for each in advantages) / len(advantages)
    return [(each - mean) / math.sqrt(variance + 1e-8) for each in advantages]


def test_rewards_advantages_and_returns_of_ended_and_cut_responses():
    # KL -0.1, -0.2, -0.1 at coefficient 1 pays 0.1, 0.2, 0.1; the score 0.2 on the last token makes it 0.3.
    # The cut response goes on at V = 0.8, the ended one at 0. gamma 0.99, lambda 0.95. A third row of one token with
    # reward 1 - 0.5 shares the rectangle; its padding counts nowhere.
    logprobs, ref = [-1.0, -1.0, -1.0], [-0.9, -0.8, -0.9]
    values = [0.4, 0.5, 0.6]
    batch = rollout(
        measured(logprobs, ref, score=0.2, values=values, terminated=False, bootstrap_value=0.8),
        measured(logprobs, ref, score=0.2, values=values),
        measured([-0.5], [-1.0], score=1.0, values=[0.25]),
    )
    experience = experience_of(batch, tiny_config(gamma=0.99, lam=0.95), kl_coef=1.0)
    cut, ended, short = [0.906701, 0.756726, 0.492], [0.206145, 0.01185, -0.3], 0.5 - 0.25
    expected_returns = [[1.306701, 1.256726, 1.092], [0.606145, 0.51185, 0.3], [0.5, 0.0, 0.0]]
    torch.testing.assert_close(experience.returns, torch.tensor(expected_returns), rtol=0, atol=1e-6)
    all_whitened = whitened([*cut, *ended, short])
    expected = [all_whitened[:3], all_whitened[3:6], [all_whitened[6], 0.0, 0.0]]
    torch.testing.assert_close(experience.advantages, torch.tensor(expected), rtol=0, atol=2e-6)


def test_the_score_lands_on_the_last_token_and_padding_gets_nothing():
    # gamma = lambda = 1 and values 0: each of the 3 tokens is worth the whole score
    batch = rollout(measured([-1.0] * 3, [-1.0] * 3, score=2.0), measured([-1.0] * 5, [-1.0] * 5, score=-1.0))
    experience = experience_of(batch, tiny_config(gamma=1.0, lam=1.0), kl_coef=0.3)
    assert experience.returns.tolist() == [[2.0, 2.0, 2.0, 0.0, 0.0], [-1.0] * 5]
    # the same at lambda 0: only the last token sees the score
    last_only = experience_of(batch, tiny_config(gamma=1.0, lam=0.0), kl_coef=0.3).returns
    assert last_only.tolist() == [[0.0, 0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, -1.0]]


class Saying(nn.Module):
    """Stands for a policy with a critic; says what it is told."""

    def __init__(self, outputs: ResponseOutputs):
        super().__init__()
        self.outputs = outputs

    def response_outputs(self, sequences, temperature):
        return self.outputs

    response_outputs_with_detached_entropy = response_outputs_with_detached_trunk = response_outputs


def one_token(value: float, entropy: float, advantage: float, returns: float) -> tuple[Experience, Saying]:
    logprobs, values = torch.tensor([[-1.0]], requires_grad=True), torch.tensor([[value]], requires_grad=True)
    old = torch.tensor([[-1.0]])
    experience = Experience(
        join([[4]], [[5]], 0), old, torch.zeros(1, 1), torch.tensor([[advantage]]), torch.tensor([[returns]])
    )
    return experience, Saying(ResponseOutputs(logprobs, torch.tensor([[entropy]]), values))


def test_the_loss_adds_half_the_value_loss_takes_the_entropy_off_and_reports_each_alone():
    # ratio 1, advantage -0.2: policy loss 0.2. Value error sqrt(0.8): 0.5 * 0.8 = 0.4. 0.2 + 0.5 * 0.4 - 0.01 * 1.5
    experience, policy = one_token(value=math.sqrt(0.8), entropy=1.5, advantage=-0.2, returns=0.0)
    config = tiny_config(value_clip=None, value_coef=0.5, entropy_coef=0.01)
    loss, metrics = ppo_loss(experience, 1, config, policy)
    assert loss.item() == pytest.approx(0.385)
    assert [metrics[name].item() for name in ("policy/loss", "value/loss", "policy/entropy_mean")] == pytest.approx(
        [0.2, 0.4, 1.5]
    )
    # in warm-up only the value term is left
    loss, metrics = value_warmup_loss(experience, 1, config, policy)
    assert (loss.item(), metrics["policy/loss"].item()) == pytest.approx((0.2, 0.0))


def test_a_value_that_left_the_clip_range_away_from_its_target_is_still_pulled_back():
    # old value 0, clip 0.2, value 0.9. Return 2: the clipped error 1.8 is the larger one and gives no gradient.
    # Return 0.5: the free error 0.4 is the larger one.
    for returns, loss_value, gradient in ((2.0, 0.5 * 1.8**2, 0.0), (0.5, 0.5 * 0.4**2, 0.4)):
        experience, policy = one_token(value=0.9, entropy=0.0, advantage=0.0, returns=returns)
        _, metrics = ppo_loss(experience, 1, tiny_config(value_clip=0.2), policy)
        assert metrics["value/loss"].item() == pytest.approx(loss_value)
        loss, _ = value_warmup_loss(experience, 1, tiny_config(value_clip=0.2, value_coef=1.0), policy)
        loss.backward()
        assert policy.outputs.values.grad.item() == pytest.approx(gradient)


def first_rollout(**settings):
    """A rollout of 16 rows of at most 3 tokens, and the critic's values behind the last token of each."""
    with running(tiny_config(max_new_tokens=3, **settings)) as (trainer, _):
        make_critic_speak(trainer)
        batch = trainer.collect(trainer.encode(PROMPTS), range(16), ("rollout", 0))
        with torch.no_grad():
            after_last: Tensor = trainer.model.bootstrap_values(batch.sequences)
            outputs = trainer.model.response_outputs(batch.sequences, 1.0)
        torch.testing.assert_close(batch.old_values, outputs.values, rtol=0, atol=1e-5)
        assert batch.old_values[batch.response_mask].abs().min() > 0
    return batch, after_last


def test_a_cut_response_goes_on_at_the_critics_value_and_an_ended_one_at_zero():
    batch, after_last = first_rollout(seed=4)
    assert batch.truncated.any()
    torch.testing.assert_close(batch.bootstrap_values, after_last.where(batch.truncated, 0.0), rtol=0, atol=1e-5)
    assert batch.bootstrap_values[batch.truncated].abs().min() > 0
    assert torch.equal(batch.terminated, ~batch.truncated)
    assert batch.scores.tolist() == pytest.approx(share_of_e([], batch.responses))


def test_a_score_for_a_missing_end_makes_the_cut_an_end_like_any_other():
    batch, _ = first_rollout(seed=4, missing_eos_score=-5.0)
    assert batch.bootstrap_values.tolist() == [0.0] * 16
    own = share_of_e([], batch.responses)
    expected = [-5.0 if cut else score for cut, score in zip(batch.truncated.tolist(), own, strict=True)]
    assert batch.scores.tolist() == pytest.approx(expected)
    assert -5.0 in expected
