"""A batch of ragged rows says of each row what the model says of the row alone, to 1e-5, whatever the architecture.

The row alone goes through the model's own forward pass: no padding, no mask, no code of rlcore but the critic's layers.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.batches import Sequences, join, left_pad, right_pad
from rlcore.dpo.dataset import PairBatch
from rlcore.dpo.loss import response_sums
from rlcore.models import PPOModel, sampled_logprobs
from tests.support.reward import BODIES, ROWS, padded, reward_model
from tests.support.tiny import PAD_ID, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_qwen2

DECODERS = {"llama": tiny_llama, "gpt2": tiny_gpt2, "qwen2": tiny_qwen2, "gemma2": tiny_gemma2}
TEMPERATURE = 0.7

# Prompts of 1 to 9 tokens, responses of 1 to 8; ids that equal the padding are tokens like any other.
PROMPTS = [[5], [7, 1, 9, 30, 2, 41, 8, 8, 17], [PAD_ID, 12, 33], [4, 4, 4, 4, 4]]
RESPONSES = [[6, 20, 3], [11], [44, 2, PAD_ID, 19, 25, 7, 3, 3], [13, 3]]

decoders = pytest.mark.parametrize("make", DECODERS.values(), ids=DECODERS)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def ragged() -> Sequences:
    return join(PROMPTS, RESPONSES, PAD_ID)


def with_a_critic(model: PreTrainedModel) -> PPOModel:
    """A critic that says something: a new one says 0."""
    policy = PPOModel(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        torch.nn.init.normal_(policy.value_head.output.weight)
    return policy.eval()


@torch.no_grad()
def alone(model: PreTrainedModel, measure: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    """For each row: what is measured of its logits and last hidden states at the response tokens, one earlier."""
    found = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        outputs = model(torch.tensor([prompt + response]), output_hidden_states=True)
        start = len(prompt) - 1
        found.append(measure(outputs.logits[0, start:], outputs.hidden_states[-1][0, start:]))
    return found


def logprobs_alone(model: PreTrainedModel, temperature: float) -> list[Tensor]:
    rows = alone(model, lambda logits, _: (logits / temperature).log_softmax(dim=-1))
    return [
        row[:-1].gather(1, torch.tensor(response)[:, None])[:, 0] for row, response in zip(rows, RESPONSES, strict=True)
    ]


@decoders
def test_log_probabilities(make):
    model = make()
    found = sampled_logprobs(model, ragged(), TEMPERATURE)
    for row, expected in zip(found, logprobs_alone(model, TEMPERATURE), strict=True):
        assert_close(row[: len(expected)], expected)
        assert row[len(expected) :].eq(0).all()


@decoders
def test_log_probabilities_entropies_and_values_of_a_policy_with_a_critic(make):
    model = make()
    policy = with_a_critic(model)
    found = policy.response_outputs(ragged(), TEMPERATURE)
    bootstrap = policy.bootstrap_values(ragged())
    distributions = alone(
        model, lambda logits, _: torch.distributions.Categorical(logits=logits / TEMPERATURE).entropy()
    )
    values = alone(model, lambda _, hidden: policy.value_head(hidden))
    for row, logprobs in enumerate(logprobs_alone(model, TEMPERATURE)):
        length = len(logprobs)
        assert_close(found.logprobs[row, :length], logprobs)
        assert_close(found.entropy[row, :length], distributions[row][:-1])
        assert_close(found.values[row, :length], values[row][:-1])
        assert_close(bootstrap[row], values[row][-1])


@decoders
@pytest.mark.parametrize("pad", [left_pad, right_pad])
def test_logits_and_values_of_rows_padded_on_either_side(make, pad):
    policy = with_a_critic(make())
    rows = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    input_ids, attention_mask = pad(rows, PAD_ID)
    with torch.no_grad():
        found = policy(input_ids, attention_mask, return_value=True)
        for row, real in enumerate(attention_mask.bool()):
            outputs = policy.base_model(torch.tensor([rows[row]]), output_hidden_states=True)
            assert_close(found["logits"][row, real], outputs.logits[0])
            assert_close(found["values"][row, real], policy.value_head(outputs.hidden_states[-1][0]))


@decoders
def test_any_part_of_the_batch_in_any_order(make):
    policy = with_a_critic(make())
    whole = policy.response_outputs(ragged(), TEMPERATURE)
    for rows in ([2, 0], [3], [1, 3, 0, 2]):
        part = policy.response_outputs(ragged().select(rows), TEMPERATURE)
        assert_close(part.logprobs, whole.logprobs[rows])
        assert_close(part.values, whole.values[rows])


@decoders
def test_sums_of_preference_pairs(make):
    model = make()
    # the last two rows are the rejected sides
    input_ids, _ = right_pad([prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)], PAD_ID)
    response_ids, mask = right_pad(RESPONSES, PAD_ID)
    batch = PairBatch(input_ids, torch.tensor([len(prompt) for prompt in PROMPTS]), response_ids, mask.bool())
    expected = torch.stack([logprobs.sum() for logprobs in logprobs_alone(model, 1.0)])
    assert_close(response_sums(model, batch), expected)


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
@pytest.mark.parametrize("name", BODIES)
def test_scores_of_reward_models(name, pooling):
    model = reward_model(name, pooling_strategy=pooling)
    with torch.no_grad():
        pooled = {
            "last": lambda states: states[-1],
            "mean": lambda states: states.mean(dim=0),
            "cls": lambda states: states[0],
        }
        states = [model.body(input_ids=torch.tensor([row])).last_hidden_state[0] for row in ROWS]
        expected = torch.stack([model.head(pooled[pooling](row))[0] for row in states])
        for left, right in ((0, 0), (5, 0), (0, 5), (2, 3)):
            assert_close(model.scores(*padded(ROWS, left, right)), expected)
    assert expected.std() > 1e-3
