"""Each accepted flag changes a named part of what the trainer is asked."""

import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from rlcore.backends import trainer_for
from rlcore.cli import project
from rlcore.configs import RewardModelConfig
from tests.support import stand_ins
from tests.support.checkout import ROOT
from tests.support.llm import PAIRS, Call, NotedCalls, llm, write_rows
from tests.support.llm_effects import BASE, EFFECTS, OF_AN_ENVIRONMENT, Effect

OTHER_ENVIRONMENTS = """
from my_envs.hotel_env import HotelEnv as _HotelEnv

class HotelEnv(_HotelEnv):
    pass

class Inn(_HotelEnv):
    pass
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Two policies and a reward model."""
    place = tmp_path_factory.mktemp("models")
    made = {"model": stand_ins.gemma3(place / "gemma3"), "other": stand_ins.gemma2(place / "gemma2")}
    config = RewardModelConfig(model_name=str(made["model"]), num_epochs=0)
    data = datasets.DatasetDict(
        train=datasets.Dataset.from_list(PAIRS).select_columns(["prompt", "chosen", "rejected"])
    )
    trainer_for("reward")(config, data, place / "reward")
    return made | {"reward": place / "reward"}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with rows and environments."""
    folder = tmp_path_factory.mktemp("here")
    write_rows(folder / "data/train.jsonl", PAIRS)
    write_rows(folder / "data/valid.jsonl", PAIRS[:4])
    write_rows(folder / "more.jsonl", PAIRS[3:])
    (folder / "other_envs.py").write_text(OTHER_ENVIRONMENTS)
    return folder


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, ...], Call]:
    """Calls by flags, as most effects are compared with the same one."""
    return {}


@pytest.fixture
def asked(place, folders, known, monkeypatch) -> Callable[..., Call]:
    """What a trainer is asked with the flags of an effect and some more."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    noted = NotedCalls()
    monkeypatch.setattr(project, "trainer_for", noted)

    def ask(effect: Effect, *flags: str) -> Call:
        base = () if effect in OF_AN_ENVIRONMENT else BASE[effect.trainer]
        argv = ("--trainer", effect.trainer, "--model", "{model}", *base, *effect.given, *flags)
        if argv not in known:
            assert llm(*(flag if flag.startswith('{"') else flag.format(**folders) for flag in argv)) == 0
            known[argv] = noted.calls[-1]
        return known[argv]

    return ask


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: f"{effect.trainer} {effect.changed[-2][2:]}")
def test_a_flag_changes_what_the_trainer_is_asked(effect, asked):
    assert effect.seen(asked(effect)) != effect.seen(asked(effect, *effect.changed))
