"""Good practice in a whole run of the pipeline: a refusal before the policy trains, and warnings that are said once."""

import re

import pytest

from tests.support.checkout import make_checkout, rlhf
from tests.support.runs import runs_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """A checkout, and what was said of a run that is refused and of one that goes on."""
    root = make_checkout(tmp_path_factory.mktemp("practices") / "checkout")
    refused = rlhf(root, "pipeline", "run", "--set", "practices.min_rm_accuracy=0.9")
    without = "practices.silence=[ppo_learning_rate, reward_model_accuracy]"
    went_on = rlhf(root, "pipeline", "run", "--set", without, "--set", "ppo.value_warmup_iterations=0")
    return root, refused, went_on


def test_a_weak_reward_model_ends_the_run_before_the_policy_and_is_not_tried_again(said):
    root, refused, _ = said
    assert refused.returncode == 2
    weak = r"data/models/reward orders 80\.0% of (its|\d+) validation pairs rightly, expected at least 90\.0%"
    assert len(re.findall(weak, refused.stdout)) == 1
    assert "add reward_model_accuracy to practices.silence" in refused.stdout
    assert refused.stdout.count("policy: started") == 1
    runs = runs_of(root)
    (first, second) = runs.pipelines()
    assert "practice.reward_model_accuracy" in first.data.tags
    names = {run.info.run_name for run in runs.runs if run.data.tags.get("mlflow.parentRunId") == first.info.run_id}
    assert names == {"demo_data", "validate", "sft", "reward"}
    assert second.data.tags["practice.value_warmup"].startswith("ppo.value_warmup_iterations=0")


def test_a_silenced_practice_lets_the_run_go_on_and_the_others_are_listed_in_the_summary(said):
    _, _, went_on = said
    assert went_on.returncode == 0
    assert "The reward model" not in went_on.stdout
    progress, _, summary = went_on.stdout.partition("What happened")
    assert progress.count("warn: value_warmup: ") == 1
    assert len(re.findall("value_warmup: ", summary)) == 1
    assert "What to watch" in summary
    assert "reward: cached" in progress  # the section practices is no dependency
