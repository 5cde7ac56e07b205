"""The example of an environment of one's own: what it scores, and that a policy learns it from the command line."""

import importlib.util
import sys
from contextlib import contextmanager
from types import ModuleType

import pytest

from rlcore.cli import progress
from rlcore.environments import load_episode_environment
from tests.support.checkout import ROOT
from tests.support.hotel_example import call, hotel_policy
from tests.support.llm import llm

ENVIRONMENT = ("--rl-env-module", "my_envs.hotel_env", "--rl-env-class", "HotelEnv")


@pytest.fixture
def hotel() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hotel_example", ROOT / "examples/my_envs/hotel_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def turns(*contents: str) -> list[dict[str, str]]:
    """Turns of the policy, with an answer of the desk behind each but the last."""
    messages = []
    for content in contents:
        messages += [{"role": "assistant", "content": content}, {"role": "tool", "name": "find_rooms", "content": "…"}]
    return messages[:-1]


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        # guest 0 wants the sea: rooms 11, 21 and 31, of which 21 is the cheapest
        (turns(call("sea"), "Room 21."), 1.0),
        (turns(call("sea"), "Rooms 21 and 31."), 0.5),
        (turns(call("sea"), "Room 11."), 0.5),
        (turns(call("sea")), 0.5),
        (turns(call("garden"), "Room 21."), 0.0),
        (turns("Room 21."), 0.0),  # a guess is no answer
        (turns("<tool_call>{</tool_call>"), 0.0),
        (turns(f"{call('garden')}{call('sea')}", "Number 21, for 150 a night."), 1.0),
    ],
)
def test_scores(hotel, completion, score):
    assert hotel.HotelEnv().score_episode(None, None, completion, case_idx=0) == score


def test_the_desk_answers_with_numbers_and_prices(hotel):
    environment = hotel.HotelEnv()
    answer = environment.call_tool("find_rooms", {"view": "garden"}, case_idx=1)
    assert answer == "room 12 costs 95, room 22 costs 110, room 32 costs 120"
    assert [environment.cheapest(guest) for guest in range(4)] == [21, 12, 24, 21]
    assert "there are sea, garden, street" in environment.call_tool("find_rooms", {"view": "moon"}, case_idx=1)


def test_it_is_an_environment_with_a_guest_for_each_row(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    environment = load_episode_environment("my_envs.hotel_env", "HotelEnv", '{"guests": 4}')
    rows = environment.build_dataset(None)
    assert [row["case_idx"] for row in rows] == [0, 1, 2, 3]
    assert rows[1]["prompt"][-1]["content"].endswith("a view of the garden, please.")


def test_a_policy_learns_it_in_two_turns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    scores = []

    @contextmanager
    def shown_progress(title):
        yield lambda step, metrics: scores.append(metrics["reward/score_mean"]) if step else None

    monkeypatch.setattr(progress, "shown_progress", shown_progress)
    policy = hotel_policy(tmp_path / "policy")
    size = ("--batch-size", 24, "--gradient-accumulation", 2, "--rl-num-generations", 8, "--epochs", 8)
    sampling = ("--rl-max-new-tokens", 10, "--rl-top-k", 0, "--rl-kl-coef", 0, "--lr", "1e-2")
    argv = ("--trainer", "grpo", "--model", policy, "--implementation", "own", "--rl-max-turns", 2)
    assert llm(*argv, *ENVIRONMENT, *size, *sampling) == 0
    # 30 guests with 8 answers are 5 iterations of 48; asking is worth 0.5, and what lies above needs the second turn
    assert len(scores) == 40
    assert sum(scores[-10:]) / 10 - sum(scores[:5]) / 5 > 0.2
    assert max(scores[-10:]) > 0.5
