"""Folders that settings name: their content counts like a dependency."""

from pathlib import Path

import pytest

from rlcore.configs import EvaluateConfig, PPOConfig, SFTConfig
from tasks.records.folders import have_changed, named_folders, remember
from tasks.records.stage import stage_key


@pytest.fixture
def model(tmp_path):
    """A model folder in a checkout."""
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "weights").write_text("1")
    return tmp_path / "my-model"


def test_only_local_folders_outside_the_pipelines_data_are_read(tmp_path, model):
    (tmp_path / "data/models/sft").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    for config in (SFTConfig(), SFTConfig(model_name="org/hub-name"), PPOConfig(model_name="data/models/sft")):
        assert named_folders(config, tmp_path) == {}
    assert list(named_folders(SFTConfig(model_name="my-model"), tmp_path)) == ["my-model"]
    assert list(named_folders(EvaluateConfig(text_model=str(model)), tmp_path)) == [str(model)]


def test_another_content_is_another_key_and_noticed_once(tmp_path, model):
    config = SFTConfig(model_name="my-model")
    before, key = named_folders(config, tmp_path), stage_key("sft", config, tmp_path)
    # A folder that was not seen before has nothing to differ from: DVC sees the new name in params.yaml.
    assert not have_changed("sft", before, tmp_path)
    remember("sft", before, tmp_path)
    (model / "weights").write_text("2")
    after = named_folders(config, tmp_path)
    assert stage_key("sft", config, tmp_path) != key
    assert have_changed("sft", after, tmp_path)
    assert not have_changed("reward", after, tmp_path)
    remember("sft", after, tmp_path)
    assert not have_changed("sft", after, tmp_path)
    assert have_changed("sft", before, tmp_path)


def test_a_stage_without_folders_leaves_no_note(tmp_path):
    remember("sft", {}, tmp_path)
    assert list(Path(tmp_path).iterdir()) == []


def test_the_champions_folder_counts_and_is_never_taken_for_known(tmp_path):
    (tmp_path / "data/models/champion").mkdir(parents=True)
    (tmp_path / "data/models/champion/weights").write_text("1")
    used = named_folders(SFTConfig(model_name="data/models/champion"), tmp_path)
    assert list(used) == ["data/models/champion"]
    assert have_changed("sft", used, tmp_path)
    remember("sft", used, tmp_path)
    assert not have_changed("sft", used, tmp_path)
