"""What a pipeline run knows before each step, and what it then says about good practice."""

import copy
import functools
import shutil

import pytest

from rlcore.errors import ConfigError
from rlcore.practices import PRACTICES
from rlcore.results import TrainResult
from rlcore.training_record import record_training
from tasks.records import artifacts, parameters
from tasks.records.parameters import resolve
from tasks.records.versioning import StageFacts
from tasks.running.practices import PracticeChecks
from tests.support.checkout import ROOT
from tests.support.fake_stages import REPORT

PROFILES = [None, *sorted((ROOT / "configs").glob("*.yaml"))]
ALL = list(artifacts.STAGES)


class Run:
    """The checks of one run in a checkout with good data, and what was said and tagged."""

    def __init__(self, root, *sets, profile=None):
        self.root, self.said, self.tags = root, [], {}
        resolved = resolve(ROOT / "params.yaml", profile, sets).parameters
        self.checks = PracticeChecks(resolved, root, self.said.append, self.tags.update)

    def after(self, *stages, **metrics) -> list[str]:
        """Names of the practices that are found new once these stages are up to date."""
        before = len(self.checks.found)
        self.checks.judge({stage: StageFacts(stage, {}, {}, cache_hit=True, metrics=metrics) for stage in stages})
        return [finding.practice for finding in self.checks.found[before:]]


@pytest.fixture(autouse=True, scope="module")
def _each_file_is_parsed_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameters, "read_yaml", functools.cache(parameters.read_yaml))
        yield


@pytest.fixture
def root(tmp_path):
    report(tmp_path)
    trace(tmp_path, [1.0])
    artifacts.write_json(tmp_path / artifacts.EVALUATE, {})
    return tmp_path


def report(root, **changed):
    artifacts.write_json(root / artifacts.VALIDATION, {**copy.deepcopy(REPORT), **changed})


def trace(root, kls, name="kl/ref_sequence_mean"):
    artifacts.write_rows(
        root / artifacts.TRACES["policy"], [{"step": n, "time": 0, name: kl} for n, kl in enumerate(kls)]
    )


@pytest.mark.parametrize("algorithm", artifacts.POLICY_ALGORITHMS)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem if path else "params")
def test_the_shipped_settings_follow_every_practice_or_silence_it_by_name(root, profile, algorithm):
    run = Run(root, f"algorithm={algorithm}", profile=profile)
    for done in range(len(ALL)):
        found = run.after(*ALL[:done], **{"best/validation/accuracy": 0.8})
        # What training comes to is not in the settings.
        assert [name for name in found if PRACTICES[name].moment == "at the start"] == []
    assert run.after() == []


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem if path else "params")
def test_a_profile_silences_only_what_would_speak(root, profile):
    silenced = Run(root, profile=profile).checks.parameters.practices.silence
    spoken = set()
    for algorithm in artifacts.POLICY_ALGORITHMS:
        spoken |= set(Run(root, f"algorithm={algorithm}", "practices.silence=[]", profile=profile).after())
    assert spoken == set(silenced)


def test_a_practice_is_said_once_and_tagged(root):
    run = Run(root, "ppo.value_warmup_iterations=0")
    assert run.after() == ["value_warmup"]
    assert run.after("validate") == run.after("validate", "sft") == []
    (said,) = run.said
    assert said.startswith("warn: value_warmup: ppo.value_warmup_iterations=0, recommended at least 1")
    assert said.endswith("To go on without this check: add value_warmup to practices.silence.")
    assert run.tags == {"practice.value_warmup": said.removeprefix("warn: value_warmup: ")}


def test_a_weak_reward_model_stops_ppo_before_it_starts_and_again_when_it_is_tried_again(root):
    run = Run(root)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"data/models/reward orders 69\.9% of 500 validation .* least 70\.0% before ppo"
        ):
            run.after("validate", "sft", "reward", **{"best/validation/accuracy": 0.699})
    assert run.said == []  # the error says it
    assert "practice.reward_model_accuracy" in run.tags


@pytest.mark.parametrize(
    "sets",
    [
        ["algorithm=dpo"],
        ["reward_function=m:f"],
        ["practices.min_rm_accuracy=null"],
        ["practices.min_rm_accuracy=0.5"],
        ["practices.silence=[ppo_learning_rate, dpo_learning_rate, reward_model_accuracy]"],
    ],
)
def test_who_does_not_learn_from_it_or_asks_less_of_it_goes_on(root, sets):
    assert Run(root, *sets).after("validate", "sft", "reward", **{"best/validation/accuracy": 0.6}) == []


def test_a_reward_model_without_validation_pairs_is_not_judged(root):
    assert Run(root).after("validate", "sft", "reward") == []


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"pairs": {"chosen_longer_share": 0.9, "objectives": []}}, "balanced_pairs"),
        ({"pairs": {"chosen_longer_share": None, "objectives": ["helpful", "safe"]}}, "separate_objectives"),
        ({"distinct_prompts": {"preferences": 5000, "prompts": 20}}, "diverse_prompts"),
        ({"counts": {"preferences": {"rows": 1000, "kept": 700, "dropped": 300}}}, "preference_quality"),
        (
            {"findings": [{"kind": "preferences", "rule": "duplicate", "count": 1900}]},
            "preference_quality",
        ),
        ({"splits": {"prompts": {"train": 100, "validation": 0}}}, "frequent_evaluation"),
    ],
)
def test_the_data_are_judged_once_they_are_validated(root, changed, name):
    report(root, **changed)
    run = Run(root)
    assert run.after() == []
    assert run.after("validate") == [name]


def test_prompts_are_no_matter_of_a_policy_that_learns_from_pairs(root):
    report(root, distinct_prompts={"preferences": 5000, "prompts": 20})
    assert Run(root, "algorithm=dpo").after("validate") == []


def test_contradicting_pairs_ask_dpo_for_smooth_labels(root):
    report(root, findings=[{"kind": "preferences", "rule": "contradiction", "count": 200}])
    assert Run(root, "algorithm=dpo").after("validate") == ["label_smoothing"]
    assert Run(root, "algorithm=dpo", "dpo.label_smoothing=0.1").after("validate") == []
    assert Run(root).after("validate") == []


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        # 8000 pairs in batches of 32 make 250 steps.
        (["algorithm=dpo", "dpo.eval_every=249"], []),
        (["algorithm=dpo", "dpo.eval_every=250"], ["frequent_evaluation"]),
        (["algorithm=dpo", "dpo.eval_every=250", "dpo.num_epochs=2"], []),
        (["algorithm=dpo", "dpo.eval_every=125", "dpo.gradient_accumulation_steps=2"], ["frequent_evaluation"]),
        (["ppo.eval_every=35"], []),
        (["ppo.eval_every=36"], ["frequent_evaluation"]),
        (["ppo.eval_every=36", "ppo.num_iterations=0"], []),
    ],
)
def test_evaluations_are_counted(root, sets, expected):
    assert Run(root, *sets).after("validate") == expected


def test_the_kl_is_that_of_the_last_quarter_of_training(root):
    trace(root, [9.0] * 6 + [1.0, 2.0])
    assert Run(root).after(*ALL[:5]) == []
    trace(root, [1.0] * 6 + [1.5, 2.7])  # 2.1 on average, its target is 1 and its limit 2
    assert Run(root).after(*ALL[:5]) == ["kl_limit", "kl_on_target"]


def test_a_target_per_token_is_compared_with_the_kl_per_token(root):
    trace(root, [0.4], name="kl/ref_token_mean")
    sets = ["ppo.kl_target=0.1", "ppo.kl_target_unit=token"]
    assert Run(root, *sets).after(*ALL[:5]) == ["kl_on_target"]


def test_a_policy_from_pairs_is_judged_by_its_kl_on_held_out_prompts(root):
    trace(root, [0.5], name="dpo/loss")
    artifacts.write_json(root / artifacts.EVALUATE, {"kl/ref_sequence_mean": 2.5})
    run = Run(root, "algorithm=dpo")
    assert run.after(*ALL[:5]) == []
    assert run.after(*ALL) == ["kl_limit"]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["sft.max_steps=0"], ["sft_before_rl"]),  # a model from scratch that learnt nothing
        (["sft.max_steps=0", "sft.model_name=plain"], ["sft_before_rl"]),
        (["sft.max_steps=0", "sft.model_name=tuned"], []),
        (["sft.max_steps=0", "sft.model_name=owner/unknown"], []),
        (["ppo.model_name=plain"], ["sft_before_rl"]),
        (["ppo.model_name=tuned"], []),
        (["algorithm=orpo", "orpo.model_name=plain"], []),
    ],
)
def test_a_start_without_demonstrations_is_seen(root, sets, expected):
    for name in ("plain", "tuned"):
        (root / name).mkdir()
    record_training(TrainResult(root / "tuned", 1), "sft", "owner/base")
    silence = "practices.silence=[ppo_learning_rate, recommended_ranges, dpo_learning_rate]"
    assert Run(root, silence, *sets).after() == expected


@pytest.mark.parametrize(
    ("sets", "settings"),
    [
        ([], ["sft.lora", "reward.use_lora", "ppo.lora"]),
        (["sft.max_steps=0", "reward.use_lora=true"], ["ppo.lora"]),
        (["ppo.lora={rank: 8}", "reward.num_epochs=0"], ["sft.lora"]),
        (["sft.model_name=owner/base-0.9B"], []),
    ],
)
def test_a_large_model_is_seen_by_its_name_in_every_stage_that_trains_all_of_it(root, sets, settings):
    run = Run(root, "sft.model_name=owner/base-7B", *sets)
    run.after()
    named = [finding.message.partition("Set ")[2].split(",")[0] for finding in run.checks.found]
    assert named == settings


def test_no_stage_depends_on_the_practices():
    stages = parameters.read_yaml(ROOT / "dvc.yaml")["stages"]
    assert [key for stage in stages.values() for key in stage["params"] if key.startswith("practices")] == []


def test_a_missing_report_is_an_error_that_says_what_to_run(root):
    shutil.rmtree(root / artifacts.METRICS)
    with pytest.raises(Exception, match="Run the stage that writes it"):
        Run(root).after("validate")
