"""How the pipeline brings one stage up to date, with DVC and MLflow replaced by notes of what was asked."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from rlcore.configs import SFTConfig, StageResources
from rlcore.errors import ConfigError
from tasks.records import artifacts
from tasks.records.artifacts import REWARD_DIR
from tasks.records.versioning import StageFacts
from tasks.running import pipeline_run
from tasks.running.pipeline_run import PipelineRun
from tasks.running.progress import LineChecklist


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """A pipeline run whose stage sft starts from the folder my-model; `asked` lists whether DVC was to force it."""
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "weights").write_text("1")
    parameters = SimpleNamespace(
        of_stage=lambda stage: SFTConfig(model_name="my-model"),
        unread_by_policy=tuple,
        resources_of=lambda stage: StageResources(gpus=0),
    )
    resolution = SimpleNamespace(parameters=parameters, changes=())
    run = PipelineRun(tmp_path, resolution, "key", MagicMock(), LineChecklist(lambda text: None))
    run.practices = MagicMock()
    run.asked = []
    monkeypatch.setattr(pipeline_run.versioning, "reproduce", lambda stage, *, force, **rest: run.asked.append(force))
    facts = {stage: StageFacts(stage, {"code.py": "c0de"}, {}, cache_hit=True) for stage in ("sft", "policy")}
    monkeypatch.setattr(pipeline_run.versioning, "facts", lambda stage, root: facts[stage])
    monkeypatch.setattr(PipelineRun, "_record", lambda self, facts, log: facts)
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
    answer = pipeline_run.versioning.reproduce

    def fail(stage, **rest):
        answer(stage, **rest)
        raise pipeline_run.versioning.Transient("killed")

    monkeypatch.setattr(pipeline_run.versioning, "reproduce", fail)
    with pytest.raises(pipeline_run.versioning.Transient):
        pipeline.bring_up_to_date("sft")
    monkeypatch.setattr(pipeline_run.versioning, "reproduce", answer)
    pipeline.bring_up_to_date("sft")
    assert pipeline.asked == [False, True, True]


def test_the_report_on_data_that_are_refused_is_kept_with_the_run(pipeline, monkeypatch):
    def refuse(stage, **rest):
        raise pipeline_run.versioning.StageFailed("validate: 9 of 10 rows break a rule")

    monkeypatch.setattr(pipeline_run.versioning, "reproduce", refuse)
    for stage in ("sft", "validate"):
        artifacts.write_text(pipeline.root / artifacts.VALIDATION, "{}")
        with pytest.raises(pipeline_run.versioning.StageFailed):
            pipeline.bring_up_to_date(stage)
        kept = [call.args for call in pipeline.log.file.call_args_list]
        assert ((pipeline.root / artifacts.VALIDATION, "data") in kept) is (stage == "validate")


def test_dvc_is_not_asked_about_a_stage_that_an_earlier_run_brought_up_to_date(pipeline):
    pipeline.known = {"sft": StageFacts("sft", {}, {"data/models/sft": "0"}, cache_hit=True)}
    assert pipeline.bring_up_to_date("sft") is pipeline.known["sft"]
    assert pipeline.asked == []
    pipeline.bring_up_to_date("policy")
    assert pipeline.asked == [False]


def test_what_the_policys_algorithm_does_not_read_is_no_part_of_its_facts(pipeline, monkeypatch):
    read = {"data/models/sft": "0", "tasks/dpo.py": "2"}
    facts = StageFacts("policy", {**read, "data/models/reward": "1"}, {}, cache_hit=False)
    monkeypatch.setattr(pipeline_run.versioning, "facts", lambda stage, root: facts)
    pipeline.parameters.unread_by_policy = lambda: (REWARD_DIR,)
    assert pipeline.bring_up_to_date("policy").deps == read


def test_a_practice_that_refuses_ends_a_step_before_dvc_is_asked(pipeline):
    pipeline.facts = {"reward": StageFacts("reward", {}, {}, cache_hit=True)}
    pipeline.practices.judge.side_effect = ConfigError("weak")
    with pytest.raises(ConfigError, match="weak"):
        pipeline.bring_up_to_date("sft")
    assert pipeline.asked == []
    pipeline.practices.judge.assert_called_once_with(pipeline.facts)
    step = pipeline.watcher.steps["sft"]
    # Whoever ends the run says why.
    assert (step.state, step.detail) == ("failed", "")


def test_a_step_that_may_be_tried_again_says_why_it_failed(pipeline, monkeypatch):
    def fail(stage, **rest):
        raise pipeline_run.versioning.Transient("killed")

    monkeypatch.setattr(pipeline_run.versioning, "reproduce", fail)
    with pytest.raises(pipeline_run.versioning.Transient):
        pipeline.bring_up_to_date("sft")
    step = pipeline.watcher.steps["sft"]
    assert (step.state, step.detail) == ("failed", "killed")
