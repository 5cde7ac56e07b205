"""What a client lets near its model: tokens, masks, labels, losses, counts, states and samples of the right kind."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline
from rlcore.sampling import SamplingParams
from tests.support.lane_models import OneNumber, sgd
from tests.support.tiny import VOCAB_SIZE, tiny_gpt2, tiny_llama

IDS = torch.tensor([[5, 6, 7], [8, 9, 10]])
ZEROS = torch.zeros(2, 2)
PPO = {"old_logprobs": ZEROS, "advantages": ZEROS}


@pytest.fixture(scope="module")
def pipeline() -> Iterator[ForwardBackwardPipeline]:
    with ForwardBackwardPipeline(tiny_llama()) as pipeline:
        yield pipeline


# Tokens.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": [[5, 6, 7]]}, "input_ids as list, expected a tensor"),
        ({"input_ids": IDS.float()}, "input_ids of type torch.float32"),
        ({"input_ids": IDS > 5}, "input_ids of type torch.bool"),
        ({"input_ids": IDS[:0]}, r"input_ids of shape \[0, 3\]"),
        (
            {"input_ids": torch.tensor([[5, -1, 7]])},
            "input_ids: found -1 in row 0, column 1, expected ids from 0 to 47",
        ),
        ({"input_ids": torch.tensor([[5, 6, VOCAB_SIZE]])}, "input_ids: found 48 in row 0, column 2"),
        ({"labels": IDS.tolist()}, "labels as list"),
        ({"labels": IDS - 9}, "labels: found -4 in row 0, column 0, expected ids from 0 to 47, or -100 where"),
        ({"labels": IDS + VOCAB_SIZE}, "labels: found 53"),
        ({"labels": torch.full_like(IDS, -100)}, "Found no label to learn"),
        ({"attention_mask": [[1, 1, 1]] * 2}, "attention_mask as list"),
        ({"attention_mask": torch.full((2, 3), 0.5)}, "other numbers than 0 and 1"),
        ({"attention_mask": IDS * 0}, "attention_mask of zeros alone"),
        ({"attention_mask": torch.tensor([[1, 0, 0]] * 2)}, "Found no label to learn"),
        ({"input_ids": torch.full((1, 65), 5)}, "a row of 65 tokens, expected at most the model's context of 64"),
    ],
)
def test_tokens_that_do_not_fit_the_model_are_refused_at_the_door(pipeline, arguments, message):
    with pytest.raises(DataError, match=message):
        pipeline.forward_backward(**{"input_ids": IDS, **arguments})


def test_learnt_positions_limit_the_real_tokens_of_a_row_and_not_its_padding():
    ids = torch.full((1, 66), 5)
    mask = torch.ones_like(ids)
    mask[:, :2] = 0
    with ForwardBackwardPipeline(tiny_gpt2()) as pipeline:
        with pytest.raises(DataError, match="a row of 66 tokens"):
            pipeline.forward(ids)
        assert pipeline.forward(ids, mask).result()["logprobs"].shape == (1, 65)


def test_ids_of_any_whole_type_and_masks_of_any_type_are_read(pipeline):
    mask = torch.ones_like(IDS)
    expected = pipeline.forward(IDS, mask).result()["logprobs"]
    for ids, marks in ((IDS.int(), mask.bool()), (IDS.to(torch.uint8), mask.float())):
        assert torch.equal(pipeline.forward(ids, marks).result()["logprobs"], expected)


def test_a_batch_that_is_no_mapping_is_refused():
    with AsyncTrainingClient(OneNumber()) as client, pytest.raises(DataError, match="a batch of type NoneType"):
        client.forward_backward(None)


# Losses.


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"clip_ratio": -1.0}, ConfigError, "clip_ratio=-1.0"),
        ({"clip_ratio": float("nan")}, ConfigError, "clip_ratio=nan"),
        ({"clip_ratio": True}, ConfigError, "clip_ratio=True"),
        ({"value_clip": -1.0}, ConfigError, "value_clip=-1.0"),
        ({"value_coef": float("inf")}, ConfigError, "value_coef=inf"),
        ({"entropy_coef": "0.1"}, ConfigError, "entropy_coef='0.1'"),
        ({"advantages": ZEROS + float("nan")}, DataError, "advantages: found a number that is not finite"),
        ({"old_logprobs": ZEROS - float("inf")}, DataError, "old_logprobs: found a number that is not finite"),
    ],
)
def test_numbers_of_a_named_loss_are_those_that_ppo_takes(pipeline, changes, kind, message):
    with pytest.raises(kind, match=message):
        pipeline.forward_backward(IDS, loss_fn="ppo", loss_fn_kwargs={**PPO, **changes})


def test_a_number_on_padding_may_be_anything():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    advantages = torch.tensor([[0.0, 0.0], [0.0, float("nan")]])
    arguments = {**PPO, "advantages": advantages, "value_clip": None}
    with ForwardBackwardPipeline(tiny_llama()) as pipeline:
        assert pipeline.forward_backward(IDS, mask, loss_fn="ppo", loss_fn_kwargs=arguments).result().loss == 0.0


@pytest.mark.parametrize("loss_fn", [None, 5])
def test_a_loss_that_cannot_be_called_is_refused_at_the_door(pipeline, loss_fn):
    with pytest.raises(ConfigError, match=f"loss_fn={loss_fn}, expected a function"):
        pipeline.forward_backward(IDS, loss_fn=loss_fn)
    with pytest.raises(ConfigError, match=f"custom_loss_fn={loss_fn}, expected a function"):
        pipeline.forward_backward_custom(IDS, loss_fn)
    with pytest.raises(ConfigError, match=f"loss_fn={loss_fn}, expected a function"):
        pipeline.backward(loss_fn)


def test_arguments_of_a_loss_come_by_name(pipeline):
    with pytest.raises(ConfigError, match="loss_fn_kwargs as list"):
        pipeline.forward_backward(IDS, loss_fn_kwargs=[1])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss: (loss, {}, 1), "Found tuple from the loss function"),
        (lambda loss: (loss, None), "Found metrics of type NoneType"),
        (lambda loss: (loss, "text"), "Found metrics of type str"),
        (lambda loss: (loss, {"a": "text"}), "Metric 'a': found 'text', expected a number"),
        (lambda loss: (loss * 1j, {}), "Found a complex loss"),
    ],
)
def test_what_a_loss_returns_is_a_real_number_and_metrics(returned, message):
    with ForwardBackwardPipeline(tiny_llama()) as pipeline:
        custom = pipeline.forward_backward_custom(IDS, lambda model, inputs, outputs: returned(outputs.logits.mean()))
        with pytest.raises(DataError, match=message):
            custom.result()


# Counts.


@pytest.mark.parametrize("count", [1.5, True, "2", None])
def test_counts_are_whole_numbers(count):
    with pytest.raises(ConfigError, match="gradient_accumulation_steps="):
        AsyncTrainingClient(OneNumber(), gradient_accumulation_steps=count)
    with AsyncTrainingClient(OneNumber()) as client, pytest.raises(ConfigError, match="micro_batch_size="):
        client.train_step([0], lambda part: None, sgd(client), micro_batch_size=count, max_grad_norm=None)


@pytest.mark.parametrize("settings", [{"max_new_tokens": 1.5}, {"top_k": 1.5}, {"top_p": None}, {"temperature": "hot"}])
def test_sampling_settings_are_numbers(settings):
    name = next(iter(settings))
    with pytest.raises(ConfigError, match=f"{name}=.*expected a"):
        SamplingParams(**{"max_new_tokens": 4, **settings})


# States.


def test_a_state_is_loaded_from_what_saving_it_returned(tmp_path):
    with AsyncTrainingClient(OneNumber(), checkpoint_dir=tmp_path) as client:
        saved = client.save_state("a")
        client.evaluate(lambda model: model.weight.fill_(5.0)).result()
        client.load_state(saved)
        assert client.evaluate(lambda model: model.weight.item()).result() == 0.0
        for nothing in (None, 5, {}):
            with pytest.raises(ConfigError, match="expected its folder"):
                client.load_state(nothing)
        with pytest.raises(ConfigError, match="200 bytes at most"):
            client.save_state("x" * 300)


# Samples.


def test_numbers_of_numpy_are_numbers(pipeline):
    expected = pipeline.sample([5, 6], 4, seed=1, stop=[9])
    ids = np.array([5, 6])
    for prompt in (ids, ids[None], list(ids), ids.astype(np.int32)):
        assert pipeline.sample(prompt, np.int64(4), seed=np.int64(1), stop=[np.int64(9)]) == expected


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"prompt": [True]}, DataError, "expected a list of token ids"),
        ({"prompt": torch.tensor([True])}, DataError, "type torch.bool"),
        ({"prompt": np.array([5.0])}, DataError, "expected a list of token ids"),
        ({"prompt": 5}, DataError, "expected a list of token ids"),
        ({"seed": 1.5}, ConfigError, "seed=1.5"),
        ({"seed": True}, ConfigError, "seed=True"),
        ({"seed": 2**200}, ConfigError, "seed="),
        ({"stop": 5.0}, ConfigError, r"stop=5.0: expected a list"),
        ({"stop": [-1]}, ConfigError, r"the token ids \[-1\], expected 0 to 47"),
        ({"stop": [10**30]}, ConfigError, "expected 0 to 47"),
        ({"max_tokens": None}, ConfigError, "max_new_tokens=None"),
    ],
)
def test_a_sample_is_asked_for_with_numbers(pipeline, arguments, kind, message):
    with pytest.raises(kind, match=message):
        pipeline.sample(**{"prompt": [5], "max_tokens": 4, **arguments})
