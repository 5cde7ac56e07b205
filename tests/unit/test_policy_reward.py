"""What scores the answers of a policy that samples: a reward model, or the function that a setting names."""

import pytest

from rlcore.errors import ConfigError
from tasks.policy_reward import prompts_and_reward
from tasks.records.artifacts import PROMPTS, REWARD_DIR, SPLITS, write_rows
from tests.support.checkout import ROOT


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """prompts_and_reward in a checkout with two prompts, under a reward function."""
    monkeypatch.chdir(tmp_path)
    for split in SPLITS:
        write_rows(PROMPTS[split], [{"prompt": "Add 1 and 2.", "answer": 3}, {"prompt": "Add 1 and 2.", "answer": 4}])

    def prepared(name):
        text = (ROOT / "params.yaml").read_text().replace("algorithm: ppo", "algorithm: grpo")
        (tmp_path / "params.yaml").write_text(text.replace("reward_function: null", f"reward_function: {name}"))
        return prompts_and_reward(PROMPTS, REWARD_DIR, "cpu")

    return prepared


def scored(prepared, responses):
    """What the reward source says of one response to each prompt, asked as a trainer does."""
    data, reward = prepared
    rows = list(data["train"])
    return reward([row["prompt"] for row in rows], responses, [{"row": row["row"]} for row in rows])


def test_a_checker_is_a_reward_by_its_gold(ask):
    # Equal prompts with different answers: each response is checked against its own row.
    assert scored(ask("tasks.demos.arithmetic:gold"), ["The answer is 3.", "The answer is 3."]) == [1.0, 0.0]


def length(prompts, responses, metadata=None):
    """A reward function of the usual form."""
    return [len(response) + row["answer"] for response, row in zip(responses, metadata, strict=True)]


def manners(row, response, finished):
    """A checker that has no measure of the name gold."""
    return {"words": 1.0}


def test_a_reward_function_sees_whole_rows(ask):
    assert scored(ask(f"{__name__}:length"), ["a", "bb"]) == [4.0, 6.0]


def test_a_checker_that_measures_no_gold_is_refused(ask):
    with pytest.raises(ConfigError, match=r"test_policy_reward:manners measured words, expected gold"):
        scored(ask(f"{__name__}:manners"), ["a", "b"])


@pytest.mark.parametrize(("name", "said"), [("gold", "module:function"), ("tasks.demos.arithmetic:no", "no function")])
def test_a_name_that_is_no_function_is_explained(ask, name, said):
    with pytest.raises(ConfigError, match=f"reward_function: .*{said}"):
        ask(name)
