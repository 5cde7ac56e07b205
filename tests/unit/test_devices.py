"""On which device a process trains: where it was launched for, or where the settings say."""

from pathlib import Path

import pytest
import torch

from rlcore.configs import RewardModelConfig
from rlcore.errors import ConfigError
from rlcore.forward_backward import AsyncTrainingClient, placing, training_device
from rlcore.processes import SingleProcess
from rlcore.reward import RewardModel, RewardModelTrainer
from rlcore.trl_trainers import grpo as trl_grpo
from rlcore.trl_trainers.arguments import Plan, training_arguments
from tests.support import dpo, grpo, ppo
from tests.support.lane_models import OneNumber
from tests.support.tiny import tiny_llama, tiny_tokenizer

PLAN = Plan(total_steps=1, batch_size=1, logging_steps=1, save_every=None)


def launched_for(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """As if this process were one of two, whose replica has to be there."""

    class OneOfTwo(SingleProcess):
        count = 2
        device = torch.device(place)

    monkeypatch.setattr(placing, "launched_processes", OneOfTwo)


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("place", "named"), [("cuda:1", None), ("cuda:1", "cuda"), ("cuda:1", torch.device("cuda:1")), ("cpu", "cpu")]
)
def test_each_of_several_processes_trains_where_it_was_launched_for(monkeypatch, place, named):
    launched_for(monkeypatch, place)
    assert training_device(named) == torch.device(place)


@pytest.mark.parametrize(
    ("place", "named", "message"),
    [
        ("cuda:1", "cpu", "device='cpu', but this process was launched for cuda:1"),
        ("cpu", "cuda", "device='cuda', but this process was launched for cpu"),
        ("cuda:1", "cuda:0", "device='cuda:0' for 2 processes, expected cuda or none: each has a GPU of its own"),
        ("cuda:1", "cuda:1", "device='cuda:1' for 2 processes"),
        ("cuda:1", "cuda:7", "found 4 CUDA devices"),
    ],
)
@pytest.mark.usefixtures("four_gpus")
def test_a_device_for_all_processes_that_is_not_each_ones_own_is_refused(monkeypatch, place, named, message):
    launched_for(monkeypatch, place)
    with pytest.raises(ConfigError, match=message):
        training_device(named)
    with pytest.raises(ConfigError, match=message):
        AsyncTrainingClient(OneNumber(), device=named)


def test_every_trainer_asks_where_its_process_trains(monkeypatch):
    launched_for(monkeypatch, "cuda:1")
    settings = RewardModelConfig(model_name="an object is passed")
    for build in (
        lambda: ppo.tiny_trainer(ppo.tiny_config(device="cpu")),
        lambda: grpo.trainer(grpo.config(device="cpu")),
        lambda: dpo.new_trainer(dpo.config(device="cpu")),
        lambda: RewardModelTrainer(RewardModel(settings, tiny_llama()), tiny_tokenizer(), settings, device="cpu"),
        lambda: training_arguments(grpo.config(), PLAN, Path("unused"), "cpu"),
    ):
        with pytest.raises(ConfigError, match="launched for cuda:1"):
            build()


@pytest.mark.parametrize(("responses", "passes"), [(8, False), (16, True)])
def test_a_reward_that_compares_gets_each_group_in_one_process(monkeypatch, responses, passes):
    class OneOfTwo(SingleProcess):
        count = 2

    def comparing(prompts, answers):
        return [0.0] * len(answers)

    comparing.responses_per_prompt = 2
    own = grpo.trainer(grpo.config(batch_size=responses, num_generations=8), reward_fn=comparing)
    monkeypatch.setattr(trl_grpo, "launched_processes", OneOfTwo)
    if passes:
        trl_grpo._require_whole_groups(own)
    else:
        with pytest.raises(ConfigError, match="2 processes would split. Make batch_size a multiple of 16"):
            trl_grpo._require_whole_groups(own)
    own.close()
