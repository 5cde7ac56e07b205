"""The trainer reaches its models through the training client alone, and adapters need no second model."""

import gc
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from rlcore.configs import LoraConfig
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.ppo import PPOTrainer
from rlcore.scratch import build_model
from tests.support.ppo import PROMPTS, SHAPE, running, tiny_config
from tests.support.tiny import tiny_tokenizer

LANE = "rlcore-lane"


def guard(trainer: PPOTrainer) -> Counter[str]:
    """Let models and optimizer work in the client's thread only; counts their forward passes and steps."""
    used: Counter[str] = Counter()
    models = {"policy": trainer.model.base_model, "critic": trainer.model.value_head}
    if trainer.reference_model is not None:
        models["reference"] = trainer.reference_model

    def check(what: str) -> None:
        assert threading.current_thread().name == LANE, f"{what} was used outside the training client"
        used[what] += 1

    for name, model in models.items():
        for module in model.modules():
            module.register_forward_pre_hook(lambda *_, name=name: check(name))
    trainer.optimizer.register_step_pre_hook(lambda *_: check("optimizer"))
    return used


def test_models_and_optimizer_work_in_the_clients_thread_only(tmp_path: Path):
    with running(tiny_config(num_iterations=2)) as (trainer, _):
        assert isinstance(trainer.training_client, AsyncTrainingClient)
        used = guard(trainer)
        # the guard sees whoever goes round
        for forward in (
            lambda: trainer.model.base_model(torch.tensor([[5]])),
            lambda: trainer.reference_model(torch.tensor([[5]])),
            trainer.optimizer.step,
        ):
            with pytest.raises(AssertionError, match="outside the training client"):
                forward()
        assert not used
        trainer.train(PROMPTS, validation_prompts=PROMPTS[:2], resume_dir=tmp_path)
        trainer.generate_responses(PROMPTS[:2])
        trainer.evaluate(PROMPTS[:2])
        trainer.load_checkpoint(trainer.save_checkpoint(tmp_path / "more"))
        # 2 iterations of 2 epochs of 2 steps
        assert used["optimizer"] == 8
        assert min(used["policy"], used["critic"], used["reference"]) > 8


def test_the_client_does_the_reference_pass_and_every_step(monkeypatch):
    asked: Counter[str] = Counter()
    with running(tiny_config(num_iterations=3)) as (trainer, _):
        client = trainer.training_client
        step, evaluate = client.train_step, client.evaluate_in_parts

        def train_step(*arguments, **named):
            asked["steps"] += 1
            return step(*arguments, **named)

        def evaluate_in_parts(*arguments, use_reference=False, **named):
            asked["reference" if use_reference else "policy"] += 1
            return evaluate(*arguments, use_reference=use_reference, **named)

        monkeypatch.setattr(client, "train_step", train_step)
        monkeypatch.setattr(client, "evaluate_in_parts", evaluate_in_parts)
        trainer.train(PROMPTS)
    # in each iteration 2 epochs of 2 steps and one reference pass; sampling, and the critic behind cut responses
    assert asked == {"steps": 12, "reference": 3, "policy": 6}


def test_with_adapters_the_base_is_the_reference_and_there_is_no_second_model():
    model = build_model(SHAPE, tiny_tokenizer(), seed=1)
    base_weights = {weight.data_ptr() for weight in model.parameters()}
    gc.collect()
    models_before = sum(type(each) is LlamaForCausalLM for each in gc.get_objects())
    config = tiny_config(lora=LoraConfig(rank=2), num_iterations=3, learning_rate=1e-2)
    with running(config, model=model) as (trainer, reported):
        assert sum(type(each) is LlamaForCausalLM for each in gc.get_objects()) == models_before
        assert trainer.reference_model is None
        assert trainer.training_client.reference_model is None
        # what the trainer holds besides: adapters and critic, both far smaller than a second base
        own = {weight.data_ptr() for weight in trainer.model.parameters()}
        assert base_weights <= own
        trained = [name for name, weight in trainer.model.named_parameters() if weight.data_ptr() not in base_weights]
        assert all("lora_" in name or name.startswith("value_head.") for name in trained)
        trainer.train(PROMPTS)
        # the policy has moved; the reference says what the base said before there were adapters
        rollout = trainer.collect(trainer.encode(PROMPTS), range(4), ("rollout", 9))
    bare = build_model(SHAPE, tiny_tokenizer(), seed=1)
    with running(tiny_config(), model=bare, reference_model=build_model(SHAPE, tiny_tokenizer(), seed=1)) as (plain, _):
        expected = plain.model.response_outputs(rollout.sequences, 1.0).logprobs
    torch.testing.assert_close(rollout.ref_logprobs, expected, rtol=0, atol=1e-5)
    assert (rollout.old_logprobs - rollout.ref_logprobs).abs().max() > 1e-2
    assert reported[-1][1]["kl/ref_token_mean"] != 0
