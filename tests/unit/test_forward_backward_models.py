"""Evaluation in the lane, the reference, and the device that policy and reference are on."""

from collections.abc import Iterator

import peft
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from rlcore.errors import ConfigError
from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline
from tests.support.lane_models import OneNumber


@pytest.fixture
def client() -> Iterator[AsyncTrainingClient]:
    with AsyncTrainingClient(OneNumber()) as client:
        yield client


def test_evaluation_is_without_gradient_and_restores_every_mode():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1))
    model[0].eval()
    with AsyncTrainingClient(model) as client:
        assert client.evaluate(lambda model: (model.training, model[1].training)).result() == (False, False)
        assert client.evaluate(lambda model: model(torch.ones(1, 1)).requires_grad).result() is False
        assert isinstance(client.evaluate(lambda model: 1 / 0).exception(), ZeroDivisionError)
        assert (model.training, model[0].training, model[1].training) == (True, False, True)


def test_the_reference_is_frozen_and_used_when_asked_for():
    policy, reference = OneNumber(), OneNumber()
    reference.weight.data.fill_(7.0)
    with AsyncTrainingClient(policy, reference) as client:
        assert client.evaluate(lambda model: model.weight.item(), use_reference=True).result() == 7.0
        assert client.evaluate(lambda model: model.weight.item()).result() == 0.0
    assert not reference.weight.requires_grad
    assert not reference.training


def test_a_reference_that_is_missing_or_the_policy_itself_is_refused(client):
    with pytest.raises(ConfigError, match="no reference model"):
        client.evaluate(lambda model: model, use_reference=True)
    with pytest.raises(ConfigError, match="must not move with the policy"):
        AsyncTrainingClient(client.model, client.model)


def test_a_policy_with_adapters_is_its_own_reference():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
    )
    base = LlamaForCausalLM(config).eval()
    batch = {"input_ids": torch.tensor([[3, 4, 5]])}
    before = base(**batch).logits.detach()
    policy = peft.get_peft_model(
        base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    with AsyncTrainingClient(policy) as client:
        torch.testing.assert_close(client.forward(batch, use_reference=True).result()["logits"], before)
        assert (client.forward(batch).result()["logits"] - before).abs().max() > 1e-3


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_a_gpu_that_is_not_there_is_an_error_of_the_settings(monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="found 0 CUDA devices. Use cpu, or leave the device out"):
        AsyncTrainingClient(OneNumber(), device=device)
    with pytest.raises(ConfigError, match="found 0 CUDA devices"):
        ForwardBackwardPipeline(OneNumber(), device=device)


def test_an_unknown_device_is_refused_and_the_cpu_is_taken():
    with pytest.raises(ConfigError, match="device='gpu': not a device"):
        AsyncTrainingClient(OneNumber(), device="gpu")
    with AsyncTrainingClient(OneNumber(), device="cpu") as client:
        assert client.device.type == "cpu"
