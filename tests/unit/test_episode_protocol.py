"""Environments that bring their data set are imported by name and checked."""

import sys
from types import ModuleType

import pytest

from rlcore.environments import load_episode_environment
from rlcore.errors import ConfigError
from tests.support.environments import TOKENIZER


class Hotel:
    def __init__(self, rooms=1, price=10.0):
        self.rooms, self.price = rooms, price

    def build_dataset(self, tokenizer):
        return [{"prompt": "Book a room."}] * self.rooms

    def score_episode(self, model, tokenizer, completion, case_idx):
        return 1.0

    def get_tools(self):
        return []


class Half(Hotel):
    get_tools = None
    score_episode = None


@pytest.fixture
def hotels(monkeypatch):
    module = ModuleType("hotels_for_a_test")
    module.Hotel, module.Half, module.ROOMS = Hotel, Half, 3
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_an_episode_environment_is_imported_and_built(hotels):
    env = load_episode_environment(hotels, "Hotel", '{"rooms": 3}')
    assert (env.rooms, env.price) == (3, 10.0)
    assert len(env.build_dataset(TOKENIZER)) == 3
    assert load_episode_environment(hotels, "Hotel").rooms == 1


@pytest.mark.parametrize(
    ("class_name", "config", "match"),
    [
        ("Half", None, "no method score_episode, get_tools"),
        ("Hostel", None, "no function or class 'Hostel'.*Hotel"),
        ("ROOMS", None, "no function or class 'ROOMS'"),
        ("Hotel", "{'rooms': 3}", "Expected a JSON object"),
        ("Hotel", "3", "expected a JSON object"),
        ("Hotel", {"beds": 3}, "beds"),
    ],
)
def test_what_is_missing_is_named(hotels, class_name, config, match):
    with pytest.raises(ConfigError, match=match):
        load_episode_environment(hotels, class_name, config)


def test_a_module_that_is_missing_is_named():
    with pytest.raises(ConfigError, match="no_such_hotels was not found"):
        load_episode_environment("no_such_hotels", "Hotel")
