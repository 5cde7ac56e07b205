"""Log-probabilities and entropies: the shift by one, the temperature, chunks."""

import math

import pytest
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.functional.logprobs import (
    entropy,
    response_logprobs,
    response_logprobs_and_detached_entropy,
    response_logprobs_and_entropy,
    sequence_logprobs,
    token_logprobs,
)

LOG_3 = math.log(3)


def test_logits_are_divided_by_the_sampling_temperature():
    # softmax of [4, 2, 0] and of [2, 1, 0] at id 0; the first ratio of a mix is exp(-0.407606 + 0.142932) = 0.767456
    logits, ids = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
    torch.testing.assert_close(token_logprobs(logits, ids, 0.5), torch.tensor([-0.142932]), atol=1e-6, rtol=0)
    torch.testing.assert_close(token_logprobs(logits, ids), torch.tensor([-0.407606]), atol=1e-6, rtol=0)


def test_logprobs_keep_the_shape_of_the_ids_and_are_float32():
    logprobs = token_logprobs(torch.zeros(2, 3, 4, dtype=torch.bfloat16), torch.zeros(2, 3, dtype=torch.int64))
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, torch.full((2, 3), -math.log(4)))
    assert token_logprobs(torch.zeros(4), torch.tensor(1)).shape == ()


@pytest.mark.parametrize("wrong_id", [-100, -1, 3])
def test_an_id_outside_the_vocabulary_is_an_error(wrong_id):
    logits, ids = torch.zeros(1, 3), torch.tensor([wrong_id])
    with pytest.raises(IndexError):
        token_logprobs(logits, ids)
    hidden = torch.zeros(1, 2, 3)
    for measure in (response_logprobs, response_logprobs_and_entropy, response_logprobs_and_detached_entropy):
        with pytest.raises(IndexError):
            measure(hidden, CountingHead(torch.eye(3)), ids.unsqueeze(0), temperature=1.0)


@pytest.mark.parametrize("temperature", [0, -1, math.nan])
def test_temperature_zero_has_no_logprobs(temperature):
    with pytest.raises(ConfigError, match="above 0"):
        token_logprobs(torch.zeros(1, 3), torch.tensor([0]), temperature)
    with pytest.raises(ConfigError, match="above 0"):
        entropy(torch.zeros(1, 3), temperature)


def test_entropy_of_a_distribution_with_a_banned_token():
    # probabilities 1/3 and 2/3: (ln 3 + 2 (ln 3 - ln 2)) / 3 = 0.636514
    logits = torch.tensor([0.0, math.log(2), -math.inf], requires_grad=True)
    found = entropy(logits)
    found.backward()
    torch.testing.assert_close(found, torch.tensor(0.636514), atol=1e-6, rtol=0)
    # dH/dz_i = -p_i (ln p_i + H): 1/3 (1.098612 - 0.636514) = 0.154033
    torch.testing.assert_close(logits.grad, torch.tensor([0.154033, -0.154033, 0.0]), atol=1e-6, rtol=0)


def test_entropy_is_that_of_the_unfiltered_distribution():
    # logits [2, 1, 0, -1]: 0.947537 nats; its two best tokens alone have 0.582203
    torch.testing.assert_close(entropy(torch.tensor([2.0, 1.0, 0.0, -1.0])), torch.tensor(0.947537), atol=1e-6, rtol=0)


def test_entropy_of_one_possible_token_is_zero():
    assert entropy(torch.tensor([5.0, -math.inf])).item() == 0


class CountingHead:
    """A linear head that remembers how many rows it was given at once."""

    def __init__(self, weight):
        self.weight, self.rows = weight, []

    def __call__(self, hidden):
        self.rows.append(len(hidden))
        return hidden @ self.weight.T


def example(batch=3, prompt=2, response=4, width=5, vocab=7):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(batch, prompt + response, width, dtype=torch.float64, generator=generator)
    weight = torch.randn(vocab, width, dtype=torch.float64, generator=generator)
    ids = torch.randint(vocab, (batch, response), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), ids


def test_the_state_before_a_token_predicts_it():
    # One-hot states and this head: the state at position i makes id i + 1 three times as likely as each other id.
    hidden = torch.eye(4).unsqueeze(0)
    weight = LOG_3 * torch.tensor([[0.0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    logprobs = response_logprobs(hidden, CountingHead(weight), torch.tensor([[2, 3]]), temperature=1.0)
    # Ids 2 and 3 at positions 2 and 3 are predicted by the states at 1 and 2: ln(3 / 6) each, else ln(1 / 6)
    torch.testing.assert_close(logprobs, torch.full((1, 2), -math.log(2)))


def test_the_head_sees_no_prompt_position():
    hidden, weight, ids = example()
    head = CountingHead(weight)
    response_logprobs(hidden, head, ids, temperature=1.0)
    assert max(head.rows) == 3 * 4


@pytest.mark.parametrize(("max_logit_bytes", "largest_chunk"), [(336, 12), (335, 2), (1, 1)])
def test_chunks_change_neither_values_nor_gradients(max_logit_bytes, largest_chunk):
    # 12 rows of 7 float32 logits take 336 bytes; chunks take a quarter of the limit: 83 bytes are 2 rows of 28
    hidden, weight, ids = example()

    def measure(limit):
        head = CountingHead(weight)
        logprobs, entropies = response_logprobs_and_entropy(hidden, head, ids, temperature=0.7, max_logit_bytes=limit)
        gradients = torch.autograd.grad((logprobs.sin() + entropies.cos()).sum(), (hidden, weight))
        return (logprobs, entropies, *gradients), max(head.rows)

    (whole, _), (chunked, rows) = measure(10**9), measure(max_logit_bytes)
    assert rows == largest_chunk
    torch.testing.assert_close(chunked, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("max_logit_bytes", [10**9, 100, 1])
@pytest.mark.parametrize(
    "measure", [response_logprobs, response_logprobs_and_entropy, response_logprobs_and_detached_entropy]
)
def test_a_frozen_head_changes_neither_values_nor_gradients(measure, max_logit_bytes):
    hidden, weight, ids = example()

    def outputs(head):
        found = measure(hidden, head, ids, temperature=0.7, max_logit_bytes=max_logit_bytes)
        found = found if isinstance(found, tuple) else (found,)
        weights = torch.linspace(-1, 2, 12, dtype=torch.float64).view(3, 4)
        loss = sum((weights * one).sin().sum() for one in found)
        return (*found, torch.autograd.grad(loss, hidden)[0])

    trained, frozen = outputs(CountingHead(weight)), outputs(CountingHead(weight.detach()))
    torch.testing.assert_close(frozen, trained, rtol=1e-12, atol=1e-12)
    assert [one.requires_grad for one in frozen] == [one.requires_grad for one in trained]


def test_under_a_frozen_head_a_gradient_for_each_state_is_kept_in_place_of_its_logits():
    def nodes_behind(tensor):
        waiting, found = [tensor.grad_fn], []
        while waiting:
            found.append(waiting.pop())
            waiting += [node for node, _ in found[-1].next_functions if node is not None]
        return {node.name(): node for node in found}

    hidden, weight, ids = example()
    frozen = nodes_behind(response_logprobs(hidden, CountingHead(weight.detach()), ids, temperature=1.0))
    trained = nodes_behind(response_logprobs(hidden, CountingHead(weight), ids, temperature=1.0))
    assert "LogSoftmaxBackward0" in trained
    assert "LogSoftmaxBackward0" not in frozen
    assert [kept.shape for kept in frozen["_UnderFrozenHeadBackward"].saved_tensors] == [(12, 5)]


def test_chunks_without_gradient_give_the_same_values():
    hidden, weight, ids = example()
    with torch.no_grad():
        whole, chunked = (
            response_logprobs(hidden, CountingHead(weight), ids, temperature=0.7, max_logit_bytes=limit)
            for limit in (10**9, 100)
        )
    torch.testing.assert_close(chunked, whole, rtol=1e-12, atol=1e-12)


def test_all_three_agree_and_only_the_detached_entropy_has_no_gradient():
    hidden, weight, ids = example()
    head = CountingHead(weight)
    alone = response_logprobs(hidden, head, ids, temperature=0.5)
    both, entropies = response_logprobs_and_entropy(hidden, head, ids, temperature=0.5)
    detached, measured = response_logprobs_and_detached_entropy(hidden, head, ids, temperature=0.5)
    torch.testing.assert_close(both, alone)
    torch.testing.assert_close(detached, alone)
    torch.testing.assert_close(measured, entropies)
    torch.testing.assert_close(entropies, entropy(head(hidden[:, 1:-1].reshape(-1, 5)), 0.5).view(3, 4))
    assert alone.requires_grad
    assert both.requires_grad
    assert detached.requires_grad
    assert entropies.requires_grad
    assert not measured.requires_grad


def test_without_a_prompt_nothing_predicts_the_first_token():
    hidden, weight, ids = example(prompt=0)
    with pytest.raises(DataError, match="4 response tokens in sequences of 4"):
        response_logprobs(hidden, CountingHead(weight), ids, temperature=1.0)


def test_sequence_logprobs_count_labels_only():
    # A uniform model over 4 tokens, two labels: -2 ln 4
    sums, counts = sequence_logprobs(torch.zeros(2, 3, 4), torch.tensor([[-100, 0, 3], [-100, -100, -100]]))
    torch.testing.assert_close(sums, torch.tensor([-2 * math.log(4), 0.0]))
    assert counts.tolist() == [2, 0]


def test_unlabelled_positions_reach_neither_sum_nor_gradient():
    logits = torch.zeros(1, 2, 4)
    logits[0, 0] = math.nan
    logits.requires_grad_()
    sums, _ = sequence_logprobs(logits, torch.tensor([[-100, 1]]))
    sums.sum().backward()
    torch.testing.assert_close(sums, torch.tensor([-math.log(4)]))
    torch.testing.assert_close(logits.grad, torch.tensor([[[0.0] * 4, [-0.25, 0.75, -0.25, -0.25]]]))
