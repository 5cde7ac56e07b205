"""The trainer without a critic: who judges, what is asked of an environment, what is left out, what is refused."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from rlcore.configs import LoraConfig
from rlcore.errors import CheckpointError, ConfigError, DataError
from rlcore.grpo import GRPOTrainer, train
from rlcore.models import load_causal_lm, save_causal_lm
from rlcore.reward_functions import length_score
from rlcore.scratch import build_model
from tests.support.grpo import NAN, config, trainer
from tests.support.hotel import HotelEnv, hotel_config, hotel_tokenizer, hotel_trainer
from tests.support.ppo import PROMPTS, SHAPE, share_of_e, tiny_config
from tests.support.tiny import tiny_tokenizer


class Riddles:
    """An environment with text prompts and no tools, which notes what it is asked."""

    def __init__(self, rows: list[Any] | None = None, scores: tuple[Any, ...] = (0.0, 1.0)):
        self.rows = [{"prompt": "What is 1 plus 1?"}, {"prompt": "What is 2 plus 2?"}] if rows is None else rows
        self.scores = scores
        self.asked: list[tuple[Any, int]] = []

    def build_dataset(self, tokenizer: Any) -> Any:
        return self.rows

    def get_tools(self) -> list[dict[str, Any]]:
        return []

    def score_episode(self, model: Any, tokenizer: Any, completion: Any, case_idx: int) -> Any:
        assert not torch.is_grad_enabled()
        assert not model.training
        self.asked.append((completion, case_idx))
        return self.scores[len(self.asked) % len(self.scores)]


class TextHotel(HotelEnv):
    """Offers its tools and leaves calls to score_episode."""

    call_tool = None

    def score_episode(self, model: Any, tokenizer: Any, completion: Any, case_idx: int) -> float:
        return float("tool_call" in completion[-1]["content"])


def weights_of(found: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in found.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def last_metrics(found: GRPOTrainer, *arguments: Any) -> dict[str, float]:
    found.train(*arguments)
    found.close()
    return found.final_metrics


def test_a_group_size_that_does_not_fit_lists_those_that_do():
    with pytest.raises(ValueError, match=r"num_generations=4 does not divide batch_size=6; use one of \[2, 3, 6\]"):
        config(batch_size=6, mini_batch_size=6, num_generations=4)
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        config(num_generations=1)


def test_every_group_is_whole_and_every_prompt_has_its_turn():
    # 5 prompts, 2 to an iteration: after 5 iterations each had 2 groups of 4
    found = trainer(config(batch_size=8))
    prompts = found.encode(PROMPTS[:5])
    chosen = [found.choose(prompts, iteration) for iteration in range(5)]
    found.close()
    assert all(row[index : index + 4] == [row[index]] * 4 for row in chosen for index in (0, 4))
    assert Counter(index for row in chosen for index in row) == dict.fromkeys(range(5), 8)


def test_without_a_judge_responses_are_scored_by_their_length():
    found = trainer(config(num_iterations=1), reward_fn=None)
    rollout = found.collect(found.encode(PROMPTS), list(range(16)), ("rollout", 0))
    found.close()
    assert rollout.scores.tolist() == pytest.approx([length_score(text) for text in rollout.responses])


def test_a_reward_and_an_environment_are_one_judge_too_many():
    with pytest.raises(ConfigError, match="a reward_fn and an environment"):
        trainer(config(), environment=Riddles(), reward_fn=share_of_e)


def test_settings_of_another_trainer_are_refused():
    with pytest.raises(ConfigError, match="Found a PPOConfig, expected a GRPOConfig"):
        trainer(tiny_config())


def test_an_environment_brings_its_prompts_and_is_asked_about_each_response():
    environment = Riddles()
    found = trainer(config(num_iterations=1, batch_size=8), environment=environment)
    assert last_metrics(found)["reward/score_mean"] == 0.5
    assert [case for _, case in environment.asked] in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)
    assert all(isinstance(completion, str) for completion, _ in environment.asked)


def test_cases_have_the_numbers_of_their_column():
    environment = Riddles([{"prompt": "What is 1 plus 1?", "case_idx": 7}])
    last_metrics(trainer(config(num_iterations=1, batch_size=4, mini_batch_size=4), environment=environment))
    assert {case for _, case in environment.asked} == {7}


def test_chat_prompts_are_answered_with_messages_in_one_turn_too():
    environment = Riddles(datasets.Dataset.from_list([{"prompt": [{"role": "user", "content": "What is 1 plus 1?"}]}]))
    found = trainer(config(num_iterations=1, batch_size=4, mini_batch_size=4), environment=environment)
    last_metrics(found)
    ((message,), _) = environment.asked[0]
    assert message["role"] == "assistant"


def test_an_environment_may_generate_with_the_model_it_gets():
    class Asking(Riddles):
        def score_episode(self, model: Any, tokenizer: Any, completion: Any, case_idx: int) -> float:
            ids = model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, do_sample=False)
            return float(ids.shape[1])

    found = trainer(config(num_iterations=1, batch_size=4, mini_batch_size=4), environment=Asking())
    assert last_metrics(found)["reward/score_mean"] == pytest.approx(4.0, abs=1.0)


def test_validation_prompts_of_an_environment_keep_their_cases():
    environment = HotelEnv()
    found = hotel_trainer(hotel_config(), environment)
    metrics = found.evaluate(found.environment_prompts()[4:])
    found.close()
    assert [case for _, case in environment.scored] == [14, 15]
    assert "validation/score_mean" in metrics


def test_responses_of_an_environment_are_whole_episodes():
    environment = HotelEnv()
    found = hotel_trainer(hotel_config(max_new_tokens=40), environment)
    texts = found.generate_responses(found.environment_prompts() * 4)
    found.close()
    assert len(texts) == 24
    assert any("<|tool|> search: room" in text for text in texts)
    assert environment.scored == []


def test_tools_that_nothing_runs_are_offered_and_their_calls_are_text():
    found = hotel_trainer(hotel_config(max_turns=1, num_iterations=1), TextHotel())
    prompt = found.encode(found.environment_prompts())[0]
    assert hotel_tokenizer().decode(prompt.ids).startswith("<|tools|>")
    metrics = last_metrics(found)
    assert metrics["response/turns_mean"] == 1
    assert 0 < metrics["reward/score_mean"] < 1


@pytest.mark.parametrize(
    ("settings", "arguments", "named"),
    [
        ({"max_turns": 2}, {}, r"max_turns=2: found no environment with call_tool\(\)"),
        ({"max_turns": 2}, {"environment": TextHotel()}, "found no environment with call_tool"),
        ({}, {"environment": HotelEnv()}, "ignores its tools"),
    ],
)
def test_turns_and_tools_that_cannot_be_are_refused(settings, arguments, named):
    with pytest.raises(ConfigError, match=named):
        trainer(config(**settings), **arguments)


def test_tools_that_one_turn_never_runs_are_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        hotel_trainer(hotel_config(max_turns=1)).close()
    assert "max_turns=1: call_tool() of the environment is never run" in caplog.text


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"question": "What?"}], r"Riddles.build_dataset, row 0: found \['question'\], expected the column `prompt`"),
        (["What?"], "row 0: found 'What\\?'"),
        ({"prompt": ["What?"]}, "returned dict, expected a data set"),
        (3, "returned int, expected a data set"),
        ([{"prompt": "What?", "case_idx": "one"}], "Row 0: found case_idx='one'"),
        ([], "0 prompts"),
    ],
)
def test_a_data_set_that_is_none_is_refused(rows, named):
    found = trainer(config(), environment=Riddles(rows))
    with pytest.raises(DataError, match=named):
        found.train()
    found.close()


def test_neither_prompts_nor_an_environment_is_nothing_to_train_on():
    found = trainer(config())
    with pytest.raises(DataError, match="neither prompts nor an environment"):
        found.train()
    found.close()


@pytest.mark.parametrize("score", [float("inf"), "good", [1.0, 2.0]])
def test_a_score_that_is_no_number_names_who_gave_it(score):
    found = trainer(config(), environment=Riddles(scores=(score,)))
    with pytest.raises(DataError, match=r"Riddles.score_episode, response 0, returned"):
        found.train()
    found.close()


def test_an_infinite_reward_names_function_and_response():
    def unbounded(prompts: list[str], responses: list[str]) -> list[float]:
        return [0.0, 1.0, float("inf"), *[0.0] * (len(responses) - 3)]

    found = trainer(config(), reward_fn=unbounded)
    with pytest.raises(DataError, match="unbounded, response 2, returned inf"):
        found.train(PROMPTS)
    found.close()


def test_a_reward_may_be_missing():
    # every fourth response has none; the mean is that of the others
    found = trainer(config(num_iterations=1), environment=Riddles(scores=(None, 1.0, 0.0, 0.5)))
    metrics = last_metrics(found)
    assert metrics["reward/score_mean"] == 0.5
    assert metrics["reward/missing_fraction"] == 0.25
    assert metrics["policy/learned_fraction"] == 0.75
    assert metrics["optim/non_finite_steps"] == 0


def test_a_group_without_a_score_is_warned_of(caplog):
    def partly(prompts: list[str], responses: list[str]) -> list[float | None]:
        return [None] * 4 + [float(row) for row in range(12)]

    with caplog.at_level(logging.WARNING):
        last_metrics(trainer(config(num_iterations=1), reward_fn=partly), PROMPTS)
    assert "Iteration 1: 1 groups have no score at all" in caplog.text


def test_scores_that_are_all_missing_move_nothing(caplog):
    found = trainer(config(num_iterations=1), environment=Riddles(scores=(NAN,)))
    before = weights_of(found)
    with caplog.at_level(logging.WARNING):
        metrics = last_metrics(found)
    assert same(before, weights_of(found))
    assert metrics["policy/loss"] == metrics["optim/grad_norm"] == metrics["optim/non_finite_steps"] == 0
    assert "learns from none of its 16 responses" in caplog.text
    assert "100 % have no score" in caplog.text


def test_nothing_is_learned_where_all_responses_were_cut(caplog):
    # one token is no end, but once in 292 times
    found = trainer(config(num_iterations=1, max_new_tokens=1, mask_truncated=True))
    before = weights_of(found)
    with caplog.at_level(logging.WARNING):
        metrics = last_metrics(found, PROMPTS)
    assert same(before, weights_of(found))
    assert metrics["policy/loss"] == metrics["policy/kl_loss"] == metrics["optim/grad_norm"] == 0
    assert metrics["policy/first_ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert "100 % were cut by the length limit, 0 % have no score" in caplog.text


def test_adapters_learn_against_their_own_base():
    found = trainer(config(num_iterations=2, lora=LoraConfig(rank=2)))
    base = {name: weight.clone() for name, weight in found.model.named_parameters() if not weight.requires_grad}
    metrics = last_metrics(found, PROMPTS)
    assert found.reference_model is None
    assert metrics["kl/ref_k3_token_mean"] > 0
    assert all(torch.equal(base[name], weight) for name, weight in found.model.named_parameters() if name in base)


def test_a_checkpoint_of_another_estimator_is_refused(tmp_path: Path):
    first = trainer(config(num_iterations=1))
    first.train(PROMPTS, resume_dir=tmp_path)
    first.close()
    other = trainer(config(num_iterations=2, advantage_estimator="leave_one_out"))
    with pytest.raises(CheckpointError, match="config.advantage_estimator: found 'group_relative'"):
        other.train(PROMPTS, resume_dir=tmp_path)
    other.close()


def save_start(folder: Path, tokenizer: Any) -> str:
    save_causal_lm(build_model(SHAPE, tokenizer, seed=1), tokenizer, folder)
    return str(folder)


def test_the_common_interface_trains_and_publishes(tmp_path: Path):
    start = save_start(tmp_path / "start", tiny_tokenizer())
    rows = datasets.Dataset.from_dict({"prompt": PROMPTS})
    data = datasets.DatasetDict(train=rows, validation=rows.select(range(4)))
    settings = config(model_name=start, num_iterations=2)
    result = train(settings, data, tmp_path / "policy", reward=share_of_e, reference=start)
    assert result.best_step in {0, 2}
    assert result.final_metrics["reward/zero_spread_fraction"] <= 1
    load_causal_lm(result.model_dir)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy", "start"]


def test_the_common_interface_trains_in_an_environment(tmp_path: Path):
    settings = hotel_config(model_name=save_start(tmp_path / "start", hotel_tokenizer()), num_iterations=2)
    result = train(settings, None, tmp_path / "policy", environment=HotelEnv())
    assert result.best_step == 2
    assert result.final_metrics["response/turns_mean"] >= 1
