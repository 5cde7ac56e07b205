"""The forms of queued training that take token rows: shift, labels, padding, named losses, functions of the caller."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from rlcore.errors import ConfigError, DataError
from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline
from rlcore.forward_backward.token_losses import token_rows, token_scores
from tests.support.lane_models import OneNumber, UniformModel

CPU = torch.device("cpu")


class PositionModel(nn.Module):
    """Logits that depend on token and absolute position."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tokens = nn.Parameter(torch.randn(8, 8, generator=generator))
        self.positions = nn.Parameter(torch.randn(16, 8, generator=generator))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
        return {"logits": self.tokens[input_ids] + self.positions[position_ids]}


def test_a_uniform_model_gives_minus_log_v_for_each_label():
    # 3 tokens: 2 predictions, each -ln 5
    with ForwardBackwardPipeline(UniformModel(5)) as pipeline:
        output = pipeline.forward_backward(torch.tensor([[1, 2, 3]])).result()
        torch.testing.assert_close(output.logprobs, torch.full((1, 2), -math.log(5)))
        assert output.loss == pytest.approx(math.log(5))
        assert output.logits.shape == (1, 3, 5)
        assert not output.logits.requires_grad
        result = pipeline.forward(torch.tensor([[1, 2, 3]])).result()
        torch.testing.assert_close(result["logprobs"], torch.full((1, 2), -math.log(5)))
        assert result["logits"].shape == (1, 3, 5)


def test_logprobs_are_those_of_the_next_label_and_ignored_labels_count_nowhere():
    # column t predicts labels[t+1]; probabilities 1/2, 1/4, 1/8, 1/8 for the tokens 0 to 3
    logits = torch.tensor([8.0, 4.0, 2.0, 2.0]).div(16).log().expand(1, 4, 4)
    rows = token_rows(torch.tensor([[3, 0, 1, 2]]), None, torch.tensor([[3, 0, -100, 2]]), CPU)
    scores = token_scores(logits, rows)
    torch.testing.assert_close(scores.logprobs, torch.tensor([[math.log(0.5), 0.0, math.log(0.125)]]))
    assert scores.mask.tolist() == [[True, False, True]]


def test_padding_on_either_side_is_no_target_and_its_nan_harms_nothing():
    ids = torch.tensor([[0, 0, 1, 2], [1, 2, 0, 0]])
    rows = token_rows(ids, torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]), None, CPU)
    assert (rows.targets != -100).tolist() == [[False, False, True], [True, False, False]]
    logits = torch.zeros(2, 4, 3).masked_fill(rows.attention_mask[..., None] == 0, math.nan).requires_grad_()
    token_scores(logits, rows).logprobs.sum().backward()
    assert logits.grad.isfinite().all()


def test_a_left_padded_row_is_read_as_it_would_be_alone():
    with ForwardBackwardPipeline(PositionModel()) as pipeline:
        alone = pipeline.forward(torch.tensor([[3, 4, 5]])).result()["logprobs"]
        padded = pipeline.forward(torch.tensor([[0, 0, 3, 4, 5]]), torch.tensor([[0, 0, 1, 1, 1]])).result()["logprobs"]
    torch.testing.assert_close(padded, torch.cat([torch.zeros(1, 2), alone], dim=1))


def test_both_spellings_of_the_old_logprobs_are_read():
    # ratio exp(-ln 4 + ln 8) = 2, advantage 3: loss -6, and -1.2 * 3 when clipped at 0.2
    arguments = {"advantages": torch.tensor([[3.0]])}
    old = torch.tensor([[-math.log(8)]])
    with AsyncTrainingClient(UniformModel(4)) as client:
        queue = partial(client.forward_backward, {"input_ids": torch.tensor([[0, 1]])})
        for spelling in ("old_logprobs", "old_log_probs"):
            output = queue("importance_sampling", {spelling: old, **arguments}).result()
            assert output.loss == pytest.approx(-6.0)
            assert output.metrics["policy/ratio_mean"] == pytest.approx(2.0)
            output = queue("ppo", {spelling: old, **arguments}).result()
            assert output.loss == pytest.approx(-3.6)
            assert output.metrics["policy/clip_fraction"] == 1.0
        with pytest.raises(ConfigError, match="two spellings"):
            queue("ppo", {"old_logprobs": old, "old_log_probs": old, **arguments})


def test_a_client_takes_the_arguments_of_a_loss_as_keywords_too():
    # ratio 2, advantage 3, clipped at 1.2: -3.6; value error (3 - 1)^2 / 2 = 2 times 0.5
    old = torch.tensor([[-math.log(8)]])
    advantages, values, returns = (torch.tensor([[number]]) for number in (3.0, 3.0, 1.0))
    with AsyncTrainingClient(UniformModel(4)) as client:
        queue = partial(client.forward_backward, {"input_ids": torch.tensor([[0, 1]])})
        output = queue(loss_fn="ppo", old_log_probs=old, advantages=advantages, values=values, returns=returns).result()
        assert output.loss == pytest.approx(-3.6 + 1.0)
        assert queue("ppo", {"old_logprobs": old}, advantages=advantages).result().loss == pytest.approx(-3.6)
        assert queue(lambda outputs, labels, scale: scale * outputs["logits"].sum() + 1, scale=2.0).result().loss == 1.0
        with pytest.raises(ConfigError, match=r"Found \['advantages'\] both in loss_fn_kwargs and as keywords"):
            queue("ppo", {"old_logprobs": old, "advantages": advantages}, advantages=advantages)
        with pytest.raises(ConfigError, match="two spellings"):
            queue("ppo", {"old_logprobs": old}, advantages=advantages, old_log_probs=old)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"values": torch.zeros(1, 1)}, "only one of values and returns"),
        ({"returns": torch.zeros(1, 1)}, "only one of values and returns"),
        ({"values": torch.zeros(1, 1), "returns": torch.zeros(1, 1), "value_clip": 0.2}, "without old_values"),
    ],
)
def test_half_a_critic_is_refused(extra, message):
    tensors = {"old_logprobs": torch.zeros(1, 1), "advantages": torch.zeros(1, 1)}
    with AsyncTrainingClient(UniformModel(4)) as client, pytest.raises(DataError, match=message):
        client.forward_backward({"input_ids": torch.tensor([[0, 1]])}, "ppo", {**tensors, **extra}).result()


def test_functions_of_the_caller_get_what_the_documents_promise():
    # loss = 2 * mean logit (0) + 42
    def custom(model: nn.Module, inputs: dict, outputs: dict, my_param: float) -> Tensor:
        assert set(inputs) == {"input_ids", "attention_mask"}
        return 2 * outputs["logits"].mean() + my_param

    def own(outputs: dict, labels: Tensor, scale: float) -> tuple[Tensor, dict[str, float]]:
        return scale * outputs["logits"].mean() + labels.sum(), {"scale": scale}

    ids = torch.tensor([[0, 1]])
    with ForwardBackwardPipeline(UniformModel(4)) as pipeline:
        assert pipeline.forward_backward_custom(ids, custom, my_param=42).result().loss == 42.0
        output = pipeline.forward_backward(ids, loss_fn=own, loss_fn_kwargs={"scale": 3.0}).result()
        assert (output.loss, output.metrics["scale"]) == (1.0, 3.0)
        # gradient of the mean of V = 4 logits: (2 + 3) / 4 each
        torch.testing.assert_close(pipeline.model.logit.grad, torch.full((4,), 1.25))
        with pytest.raises(DataError, match="expected a scalar"):
            pipeline.forward_backward_custom(ids, lambda model, inputs, outputs: outputs["logits"]).result()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss_fn": "dpo"}, "Unknown loss_fn 'dpo'. Use one of cross_entropy, importance_sampling, ppo"),
        ({"loss_fn": "ppo"}, r"missing \['old_logprobs', 'advantages'\]"),
        ({"loss_fn_kwargs": {"advantages": 1}}, r"unknown \['advantages'\]"),
        ({"input_ids": torch.tensor([1, 2])}, r"input_ids of shape \[2\]"),
        ({"labels": torch.tensor([[1, 2, 3]])}, r"labels \[1, 3\]"),
        ({"attention_mask": torch.tensor([[1, 1, 1]])}, r"attention_mask \[1, 3\]"),
    ],
)
def test_a_wrong_call_is_refused_at_the_door(arguments, message):
    with (
        ForwardBackwardPipeline(UniformModel(4)) as pipeline,
        pytest.raises((ConfigError, DataError), match=message),
    ):
        pipeline.forward_backward(**{"input_ids": torch.tensor([[0, 1]]), **arguments})


@pytest.mark.parametrize("arguments", [{"max_workers": 0}, {"gradient_accumulation_steps": 0}])
def test_sizes_below_one_are_refused(arguments):
    with pytest.raises(ConfigError, match="expected at least 1"):
        ForwardBackwardPipeline(OneNumber(), **arguments)


def test_a_batch_without_tokens_is_refused():
    with AsyncTrainingClient(OneNumber()) as client, pytest.raises(DataError, match="expected input_ids"):
        client.forward_backward({"text": torch.zeros(1)})
