"""The blocks about environments run, and do what they say."""

import dataclasses
from typing import Any, Optional

import pytest
import torch

import rlcore
from rlcore.models import load_tokenizer
from tests.support.documents import Page


@pytest.fixture
def tokenizer(models):
    return load_tokenizer(models["google/gemma-2-2b"])


def end_token(tokenizer):
    return torch.tensor(tokenizer.eos_token_id)


def test_dataclasses(module_page: Page):
    names = module_page.run(
        "dataclasses",
        dataclass=dataclasses.dataclass,
        torch=torch,
        Dict=dict,
        List=list,
        Any=Any,
        Optional=Optional,
    )
    for name in ("Observation", "StepResult", "Trajectory"):
        documented = {field.name: field.type for field in dataclasses.fields(names[name])}
        ours = {field.name: field.type for field in dataclasses.fields(getattr(rlcore, name))}
        assert list(ours) == list(documented)
        # Observation stands for two classes, the documented one and ours
        assert {key: str(kind) for key, kind in ours.items() if "Observation" not in str(kind)} == {
            key: str(kind) for key, kind in documented.items() if "Observation" not in str(kind)
        }


def test_text_environment(module_page: Page, tokenizer, capsys):
    letter = tokenizer("x", add_special_tokens=False)["input_ids"][0]
    names = module_page.run(
        "text_environment",
        tokenizer=tokenizer,
        my_reward_function=lambda prompt, generated, full_text: float(len(generated)),
        action_token=torch.tensor(letter),
    )
    env, result = names["env"], names["result"]
    assert names["observation"].prompt == "Write a story about..."
    assert (result.reward, result.done) == (0.0, False)
    # the observation after a step holds the step's token behind the prompt
    assert result.next_observation.input_ids[0, -1] == letter
    assert result.next_observation.input_ids.shape[1] == names["observation"].input_ids.shape[1] + 1
    assert env.render() in capsys.readouterr().out
    assert "x" in env.render()
    # at the end the reward function judges the generated text: one letter
    last = env.step(end_token(tokenizer))
    assert (last.reward, last.done, last.next_observation) == (1.0, True, None)


def test_multi_objective_environment(module_page: Page, tokenizer):
    names = module_page.run(
        "multi_objective_environment",
        tokenizer=tokenizer,
        prompts=["What is 2 + 2?"],
        is_correct=lambda generated: True,
        properly_formatted=lambda generated: True,
        action=end_token(tokenizer),
    )
    metrics = names["result"].metrics
    # each component without its weight; the reward is 1.0 * 1.0 + 0.1 * 0.5
    assert (metrics["reward_correctness"], metrics["reward_formatting"]) == (1.0, 0.5)
    assert names["result"].reward == pytest.approx(1.05)


def test_preference_environment(module_page: Page, tokenizer):
    asked = []

    def preference_model(prompt, first, second):
        asked.append((prompt, first, second))
        return float(len(first) - len(second))

    names = module_page.run(
        "preference_environment",
        tokenizer=tokenizer,
        prompts=["Say hello."],
        preference_model=preference_model,
        feedback_fn=lambda prompt, first, second: 0.0,
        response1_tokens=tokenizer("hello there", add_special_tokens=False)["input_ids"],
        response2_tokens=tokenizer("hi", add_special_tokens=False)["input_ids"],
    )
    first, second = names["result1"], names["result2"]
    assert (first.reward, first.done) == (0.0, False)
    assert first.next_observation.prompt == "Say hello."
    # the model is asked, and the first response is 11 letters against 2
    assert asked == [("Say hello.", "hello there", "hi")]
    assert (second.reward, second.done) == (9.0, True)
    assert second.info["responses"] == ["hello there", "hi"]


def test_built_in_environments(module_page: Page, tokenizer):
    names = module_page.run("built_in_environments", tokenizer=tokenizer)
    math_env, code_env = names["math_env"], names["code_env"]
    # correctness + formatting; syntax + style
    assert set(math_env.reward_components) == {"correctness", "formatting"}
    assert set(code_env.reward_components) == {"syntax", "style"}
    prompt = math_env.reset().prompt
    assert prompt == "What is 2 + 2?"
    right, wrong, word = math_env.score_responses([prompt] * 3, ["Answer: 4", "Answer: 5", "This is correct"])
    assert right > wrong >= word
    code_prompt = code_env.reset().prompt
    good, broken = code_env.score_responses([code_prompt] * 2, ["def f(x):\n    return x\n", "def f(:"])
    assert good > broken
