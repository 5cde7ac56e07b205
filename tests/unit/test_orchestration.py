"""How the pipeline brings one stage up to date, with DVC and MLflow replaced by notes of what was asked."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from rlcore.configs import SFTConfig
from tasks import orchestration
from tasks.orchestration import PipelineRun
from tasks.progress import LineChecklist
from tasks.records.versioning import StageFacts


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """A pipeline run whose stage sft starts from the folder my-model; `asked` lists whether DVC was to force it."""
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "weights").write_text("1")
    parameters = SimpleNamespace(of_stage=lambda stage: SFTConfig(model_name="my-model"))
    resolution = SimpleNamespace(parameters=parameters, changes=())
    run = PipelineRun(tmp_path, resolution, "key", MagicMock(), LineChecklist(lambda text: None))
    run.asked = []
    monkeypatch.setattr(orchestration.versioning, "reproduce", lambda stage, *, force, **rest: run.asked.append(force))
    monkeypatch.setattr(PipelineRun, "_record", lambda self, stage, log: StageFacts(stage, {}, {}, cache_hit=True))
    return run


def test_a_stage_is_forced_once_after_a_folder_that_a_setting_names_has_changed(pipeline):
    for _ in range(2):
        pipeline.bring_up_to_date("sft")
    (pipeline.root / "my-model" / "weights").write_text("2")
    for _ in range(2):
        pipeline.bring_up_to_date("sft")
    assert pipeline.asked == [False, False, True, False]


def test_a_stage_that_failed_after_such_a_change_is_forced_again(pipeline, monkeypatch):
    pipeline.bring_up_to_date("sft")
    (pipeline.root / "my-model" / "weights").write_text("2")
    answer = orchestration.versioning.reproduce

    def fail(stage, **rest):
        answer(stage, **rest)
        raise orchestration.Transient("killed")

    monkeypatch.setattr(orchestration.versioning, "reproduce", fail)
    with pytest.raises(orchestration.Transient):
        pipeline.bring_up_to_date("sft")
    monkeypatch.setattr(orchestration.versioning, "reproduce", answer)
    pipeline.bring_up_to_date("sft")
    assert pipeline.asked == [False, True, True]
