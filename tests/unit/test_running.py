"""What a command says where a run ends, and the folder of the data before it begins."""

import shutil

import pytest

from rlcore.errors import ConfigError, TrainingDiverged
from tasks.commands.running import checked_settings, watched
from tests.support.checkout import ROOT


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.setattr("tasks.commands.running.environment.apply", lambda root: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("error", "code", "advice"),
    [
        (ConfigError("weak"), 2, "Change what is named above and run the command again."),
        (TrainingDiverged("weak"), 1, "the same command goes on from there."),
    ],
)
def test_the_last_line_says_whether_the_same_command_would_end_alike(capsys, error, code, advice):
    def run(checklist):
        raise error

    assert watched(run, ["sft"]) == code
    stopped, kept = capsys.readouterr().out.splitlines()
    assert stopped == "Stopped: weak"
    assert kept.startswith("What is done is kept")
    assert kept.endswith(advice)


def test_a_folder_of_data_that_is_not_there_is_named_before_anything_starts(checkout):
    before = (checkout / "params.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"^found no folder data/raw/mine \(validate\.source\)\. Put demonstrations"):
        checked_settings(None, ["validate.source=data/raw/mine"])
    assert (checkout / "params.yaml").read_bytes() == before
    (checkout / "data/raw/mine").mkdir(parents=True)
    assert checked_settings(None, ["validate.source=data/raw/mine"]) == (checkout, None)


def test_data_that_a_stage_writes_need_not_be_there(checkout):
    assert checked_settings(None, []) == (checkout, None)
