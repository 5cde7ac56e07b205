"""Queued training against the plain loop: the same bits in one window, the same mean over several micro-batches."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from rlcore.errors import RLCoreError
from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline
from rlcore.forward_backward.token_losses import importance_sampling, ppo, token_rows, token_scores

CPU = torch.device("cpu")
VOCAB_SIZE = 11


class Slope(nn.Module):
    """One weight that starts at 0; the gradient of a loss g * weight is g."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))


def tiny_model(seed: int = 0, dropout: float = 0.0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=dropout,
    )
    return LlamaForCausalLM(config).train()


def token_batches(count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB_SIZE, (2, 6), generator=generator) for _ in range(count)]


def adam(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def assert_equal_bits(model: nn.Module, expected: nn.Module) -> None:
    for name, weight in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), weight), name


def slope_step(client: AsyncTrainingClient, gradients: list[float]) -> list:
    return [client.backward(lambda model, g=g: (g * model.weight, {})) for g in gradients]


# Against the plain loop.


def plain_training(batches: list[Tensor], micro_batches: int) -> LlamaForCausalLM:
    """What a person would write: the mean over micro-batches, clipped to 1, a step, a clean slate."""
    model = tiny_model(dropout=0.5)
    optimizer = adam(model)
    torch.manual_seed(1)
    for start in range(0, len(batches), micro_batches):
        for ids in batches[start : start + micro_batches]:
            logits = model(input_ids=ids).logits
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            (loss / micro_batches).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("max_workers", [1, 4])
def test_a_pipeline_trains_bit_for_bit_like_the_plain_loop_twenty_times(max_workers):
    batches = token_batches(8)
    expected = plain_training(batches, 4)
    for _ in range(20):
        model = tiny_model(dropout=0.5)
        optimizer = adam(model)
        torch.manual_seed(1)
        with ForwardBackwardPipeline(model, max_workers=max_workers, gradient_accumulation_steps=4) as pipeline:
            for ids in batches:
                pipeline.forward_backward(ids)
                pipeline.optim_step(optimizer)
        assert_equal_bits(model, expected)


def test_four_micro_batches_step_along_the_mean_of_their_gradients():
    batches = token_batches(4)
    gradients: dict[str, Tensor] = {}
    reference = tiny_model()
    for ids in batches:
        reference.zero_grad()
        reference(input_ids=ids, labels=ids).loss.backward()
        for name, weight in reference.named_parameters():
            gradients[name] = gradients.get(name, 0) + weight.grad / 4
    model = tiny_model()
    with AsyncTrainingClient(model, gradient_accumulation_steps=4) as client:
        for ids in batches:
            client.forward_backward({"input_ids": ids})
        output = client.optim_step(torch.optim.SGD(model.parameters(), lr=1.0), max_grad_norm=None).result()
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    assert output.grad_norm == pytest.approx(norm, rel=1e-5)
    for name, weight in model.named_parameters():
        expected = reference.get_parameter(name) - gradients[name]
        torch.testing.assert_close(weight, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_losses_over_the_counts_of_the_step_make_micro_batches_of_unequal_length_one_batch(micro_batches):
    # 8 tokens of loss 1.0 and 2 of loss 4.0: 16 / 10 = 1.6 for any split; the gradient d/dw of w * loss is 1.6 too
    token_losses = torch.tensor([1.0] * 8 + [4.0] * 2)
    chunks = {1: [10], 2: [8, 2], 4: [5, 3, 1, 1]}[micro_batches]

    def loss(model: Slope, part: Tensor) -> tuple[Tensor, Mapping[str, float]]:
        return (model.weight + 1) * part.sum() / 10, {}

    with AsyncTrainingClient(Slope()) as client:
        outputs = [client.backward(partial(loss, part=part)) for part in token_losses.split(chunks)]
        step = client.optim_step(torch.optim.SGD(client.model.parameters(), lr=1.0), max_grad_norm=None).result()
        assert sum(output.result().loss for output in outputs) == pytest.approx(1.6)
        assert step.grad_norm == pytest.approx(1.6)
        assert client.model.weight.item() == pytest.approx(-1.6)


def mean_pipeline(accumulation: int) -> tuple[ForwardBackwardPipeline, Callable[[float], None]]:
    """A pipeline over the model of one weight, and a function that queues a mean loss of the given gradient."""

    class TokenSlope(Slope):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return self.weight.expand(*input_ids.shape, 2)

    pipeline = ForwardBackwardPipeline(TokenSlope(), gradient_accumulation_steps=accumulation)

    def queue(gradient: float) -> None:
        loss = partial(lambda model, inputs, outputs, g: g * model.weight, g=gradient)
        pipeline.forward_backward_custom(torch.tensor([[0, 1]]), loss)

    return pipeline, queue


@pytest.mark.parametrize(
    ("gradients", "accumulation", "norms"),
    [
        ([1, 2, 3, 4, 5, 6, 7], 3, [2.0, 5.0, 7.0]),  # the last window holds one micro-batch: its own gradient, 7
        ([1, 2], 4, [1.5]),  # fewer micro-batches than a window takes: their mean
    ],
)
def test_a_short_last_window_steps_along_the_mean_of_what_it_has(gradients, accumulation, norms):
    pipeline, queue = mean_pipeline(accumulation)
    with pipeline:
        optimizer = torch.optim.SGD(pipeline.model.parameters(), lr=1.0)
        outputs = []
        for gradient in gradients:
            queue(gradient)
            outputs.append(pipeline.optim_step(optimizer, max_grad_norm=None))
        outputs.append(pipeline.flush(optimizer, max_grad_norm=None))
        taken = [output.result() for output in outputs if "skipped" not in output.result().metrics]
        assert [output.step for output in taken] == list(range(1, len(norms) + 1))
        assert [output.grad_norm for output in taken] == pytest.approx(norms)
        assert pipeline.model.weight.item() == pytest.approx(-sum(norms))


def test_a_failed_micro_batch_leaves_every_bit_of_the_weights():
    expected, model = tiny_model(), tiny_model()
    good, *_ = token_batches(1)
    with AsyncTrainingClient(model) as client:
        client.forward_backward({"input_ids": good})
        client.forward_backward({"input_ids": good}, loss_fn=lambda outputs, labels: outputs.missing)
        client.forward_backward({"input_ids": good})
        with pytest.raises(RLCoreError, match="Micro-batch 1 "):
            client.optim_step(adam(model)).result()
        assert_equal_bits(model, expected)
        assert all(weight.grad is None for weight in model.parameters())


# Named losses.


def test_cross_entropy_is_the_loss_of_the_model_library():
    model, (ids,) = tiny_model(), token_batches(1)
    labels = ids.clone()
    labels[0, :3] = -100
    with ForwardBackwardPipeline(model) as pipeline:
        output = pipeline.forward_backward(ids, labels=labels).result()
    assert output.loss == pytest.approx(model(input_ids=ids, labels=labels).loss.item(), rel=1e-6)


def uniform_scores(count: int, ignored: int = 0):
    """Scores of a uniform model over four tokens on one row of `count` targets, the last `ignored` of them ignored."""
    labels = torch.ones(1, count + 1, dtype=torch.int64)
    labels[0, count + 1 - ignored :] = -100
    logits = torch.zeros(1, count + 1, 4, dtype=torch.float64)
    return token_scores(logits, token_rows(labels.clamp(min=0), None, labels, CPU))


def test_ignored_targets_do_not_dilute_the_mean():
    # ratio 1, advantage 1: -1 whether none or half of the targets count; the ignored half holds NaN
    old = torch.tensor([[-math.log(4)] * 2 + [math.nan] * 2], dtype=torch.float64)
    advantages = torch.tensor([[1.0, 1.0, math.nan, math.nan]], dtype=torch.float64)
    scores = uniform_scores(4, ignored=2)
    for loss_fn in (ppo, importance_sampling):
        loss, _ = loss_fn(scores, old_logprobs=old, advantages=advantages)
        assert loss.item() == pytest.approx(-1.0)


def test_ppo_adds_half_the_value_error_and_takes_the_entropy_off():
    # surrogate -1; values 3 against returns 1: 0.5 * 4 = 2, times value_coef 0.5 = 1; entropy ln 4 times 0.1
    shape = {"size": (1, 2), "dtype": torch.float64}
    loss, metrics = ppo(
        uniform_scores(2),
        old_logprobs=torch.full(**shape, fill_value=-math.log(4)),
        advantages=torch.full(**shape, fill_value=1.0),
        values=torch.full(**shape, fill_value=3.0),
        returns=torch.full(**shape, fill_value=1.0),
        entropy_coef=0.1,
    )
    assert loss.item() == pytest.approx(-1 + 1 - 0.1 * math.log(4))
    assert metrics["value/loss"].item() == pytest.approx(2.0)
    assert metrics["policy/entropy_mean"].item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("loss_fn", [ppo, importance_sampling])
def test_gradients_of_the_policy_losses_are_those_of_finite_differences(loss_fn):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(5, (2, 4), generator=generator)
    labels = ids.clone()
    labels[1, 2:] = -100
    rows = token_rows(ids, None, labels, CPU)
    old = token_scores(logits.detach() + 0.05, rows).logprobs - 0.03
    advantages = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    extra = {"entropy_coef": 0.2} if loss_fn is ppo else {}

    def loss(logits: Tensor) -> Tensor:
        return loss_fn(token_scores(logits, rows), old_logprobs=old, advantages=advantages, **extra)[0]

    assert torch.autograd.gradcheck(loss, logits)
