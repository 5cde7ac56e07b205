"""What a PPO trainer takes and refuses, and what it gives back beside its training."""

import copy

import pytest
import torch

from rlcore.configs import GRPOConfig, LoraConfig
from rlcore.errors import ConfigError, DataError
from rlcore.models import save_causal_lm
from rlcore.ppo import PPOTrainer
from rlcore.scratch import build_model, train_tokenizer
from tests.support.ppo import PROMPTS, SHAPE, iterations, running, share_of_e, tiny_config, tiny_trainer
from tests.support.tiny import tiny_llama, tiny_tokenizer


def policy(**changes):
    return build_model(SHAPE.model_copy(update=changes), tiny_tokenizer(), seed=1)


# The constructor.


def test_only_settings_are_needed_and_length_is_the_reward(tmp_path):
    save_causal_lm(policy(), tiny_tokenizer(), tmp_path)
    trainer = PPOTrainer(tiny_config(model_name=str(tmp_path), num_iterations=1))
    history = trainer.train(PROMPTS)
    rollout = trainer.collect(trainer.encode(PROMPTS), range(16), ("rollout", 3))
    trainer.close()
    # words / 50, at most 1
    assert rollout.scores.tolist() == pytest.approx([min(len(text.split()) / 50, 1) for text in rollout.responses])
    assert len(history["rewards"]) == 1


def without(name: str):
    tokenizer = copy.deepcopy(tiny_tokenizer())
    setattr(tokenizer, name, None)
    return tokenizer


def padded_beyond_the_model():
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.add_special_tokens({"pad_token": "<|new pad|>"})
    return tokenizer


def model_of_another_vocabulary():
    shape = SHAPE.model_copy(update={"vocab_size": 290})
    return build_model(shape, train_tokenizer([f"{prompt} Sure." for prompt in PROMPTS], 290), seed=1)


SHARED = policy()


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({}, {"reward_fn": 7}, "Found 7 as reward, expected a function of"),
        ({}, {"reward_fn": share_of_e, "reward_weights": {"e": 2.0}}, "Found reward weights for e and one reward"),
        ({}, {"tokenizer": without("pad_token")}, "no padding token. Set `pad_token`"),
        ({}, {"tokenizer": without("eos_token")}, "no end token"),
        ({}, {"tokenizer": padded_beyond_the_model()}, "padding token 292, expected ids below 292"),
        ({}, {"model": SHARED, "reference_model": SHARED}, "the same object as model and reference_model"),
        ({}, {"reference_model": model_of_another_vocabulary()}, "292 tokens in the policy's vocabulary and 273"),
        ({}, {"model": tiny_llama(vocab_size=300).half()}, "trained weights in torch.float16.*expected float32"),
        ({}, {"model": tiny_llama(vocab_size=300).bfloat16()}, "trained weights in torch.bfloat16"),
        ({"max_new_tokens": 128}, {}, "max_new_tokens=128 leaves no room for a prompt: the model reads 128 tokens"),
        ({"lora": LoraConfig(target_modules=("nothing",))}, {}, "target_modules"),
        ({"device": "cuda:99"}, {}, "found . CUDA devices"),
        ({"model_name": "/no/such/folder"}, {"model": None}, "Found no folder"),
    ],
)
def test_what_cannot_work_is_refused_by_the_constructor(settings, arguments, message):
    with pytest.raises(ConfigError, match=message):
        tiny_trainer(tiny_config(**settings), **arguments)


def test_settings_of_another_trainer_are_refused():
    with pytest.raises(ConfigError, match="Found a GRPOConfig, expected a PPOConfig"):
        tiny_trainer(GRPOConfig(model_name="tiny"))
    with pytest.raises(ConfigError, match="Found a dict, expected a PPOConfig"):
        tiny_trainer({"model_name": "tiny"})
    with pytest.raises(ValueError, match="larger than batch_size"):
        tiny_config(mini_batch_size=32)


def test_adapters_train_on_a_base_of_half_precision():
    model = tiny_llama(vocab_size=300).bfloat16()
    with running(tiny_config(num_iterations=1, lora=LoraConfig(rank=2)), model=model) as (trainer, reported):
        trainer.train(PROMPTS)
        assert {weight.dtype for weight in trainer.model.parameters() if weight.requires_grad} == {torch.float32}
        assert trainer.model.base_model.get_base_model().dtype == torch.bfloat16
    # half precision rounds logits by hundredths of a nat
    assert iterations(reported)[0]["policy/first_ratio_mean"] == pytest.approx(1.0, abs=0.05)


# Prompts and scores.


@pytest.mark.parametrize(
    ("prompts", "message"),
    [([], "0 prompts"), ("What is 1?", "Found a str"), (["fine", None], "Prompt 1: found None"), (["  "], "Prompt 0")],
)
def test_prompts_are_checked_before_anything_is_sampled(prompts, message):
    def fails(prompts, responses):
        raise AssertionError("asked about a response")

    with running(tiny_config(), reward_fn=fails) as (trainer, _):
        for use in (trainer.train, trainer.evaluate, trainer.generate_responses):
            with pytest.raises(DataError, match=message):
                use(prompts)
        if len(prompts):
            with pytest.raises(DataError, match=message):
                trainer.train(PROMPTS, validation_prompts=prompts)
        with pytest.raises(ConfigError, match="num_iterations=-1"):
            trainer.train(PROMPTS, -1)


def test_a_prompt_longer_than_the_context_keeps_its_end(caplog):
    # the model reads 128 tokens, 6 of them new ones
    with running(tiny_config(num_iterations=1, batch_size=8)) as (trainer, reported):
        long = "What is 1 plus 1? " * 40
        (prompt,) = trainer.encode([long])
        whole = trainer.chat.encode_prompt(long)
        assert len(whole) > 128
        assert prompt.ids == trainer.chat.cut_prompt(whole, 122)
        assert len(prompt.ids) == 122
        trainer.train([long])
    with running(tiny_config(max_prompt_length=9)) as (trainer, _):
        assert len(trainer.encode([long])[0].ids) == 9
    assert len(iterations(reported)) == 1
    assert "1 of 1 prompts have more than the 122 tokens" in caplog.text


def test_the_prompts_other_columns_reach_the_reward_source():
    seen = []

    def remember(prompts, responses, metadata=None):
        seen.extend(zip(prompts, metadata, strict=True))
        return share_of_e(prompts, responses)

    with running(tiny_config(num_iterations=2, batch_size=8), reward_fn=remember) as (trainer, _):
        trainer.train([{"prompt": prompt, "row": row} for row, prompt in enumerate(PROMPTS)])
    assert sorted(columns["row"] for _, columns in seen) == list(range(16))
    assert all(PROMPTS[columns["row"]] == prompt for prompt, columns in seen)


def test_named_rewards_are_weighed_and_reported_unweighted():
    named = {
        "letters": lambda prompts, responses: [3.0] * len(responses),
        "one": lambda prompts, responses: [1.0] * len(responses),
    }
    config = tiny_config(num_iterations=1)
    with running(config, reward_fn=named, reward_weights={"letters": 0.5}) as (trainer, reported):
        assert trainer.train(PROMPTS)["rewards"] == [2.5]
    (metrics,) = iterations(reported)
    assert (metrics["reward/letters_mean"], metrics["reward/one_mean"]) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("returned", "message"),
    [([0.0], "judge returned 1 scores for 16"), ([None] * 16, "response 0, returned None"), ([1e38] * 16, "1e")],
)
def test_a_reward_source_that_is_wrong_says_so_before_anything_is_learnt(returned, message):
    def judge(prompts, responses, metadata=None):
        return returned

    with running(tiny_config(), reward_fn=judge) as (trainer, reported):
        with pytest.raises(DataError, match=message):
            trainer.train(PROMPTS)
        assert trainer.iteration == 0
        assert iterations(reported) == []


# Beside training.


def test_responses_are_sampled_by_seed_and_settings():
    with running(tiny_config()) as (trainer, _):
        first, again, other = (trainer.generate_responses(PROMPTS, seed=seed) for seed in (0, 0, 1))
        assert len(first) == len(PROMPTS)
        assert all(isinstance(text, str) for text in first)
        assert first == again != other
        greedy = [trainer.generate_responses(PROMPTS, temperature=0, seed=seed) for seed in (0, 1)]
        assert greedy[0] == greedy[1]
        assert trainer.generate_responses(PROMPTS, top_k=1) == greedy[0]
        long, short = (trainer.generate_responses(PROMPTS, max_new_tokens=count, temperature=0) for count in (12, 2))
        assert all(one.startswith(two) for one, two in zip(long, short, strict=True))
        assert long != short
        # what was asked for once does not stay
        assert trainer.generate_responses(PROMPTS) == first
        with pytest.raises(ConfigError, match="max_new_tokens=0"):
            trainer.generate_responses(PROMPTS, 0)


def test_each_row_draws_from_the_stream_of_its_iteration_whoever_is_beside_it():
    with running(tiny_config()) as (trainer, _):
        prompts = trainer.encode(PROMPTS)

        def responses(purpose: str, iteration: int, count: int = 8) -> list[str]:
            return trainer.collect(prompts, range(count), (purpose, iteration)).responses

        first = responses("rollout", 0)
        assert responses("rollout", 0) == first
        assert responses("rollout", 0, 3) == first[:3]
        others = [responses("rollout", 1), responses("validation", 0)]
    assert first != others[0] != others[1] != first


def test_an_evaluation_has_fixed_seeds_and_its_responses_can_be_read():
    rows = []
    with running(tiny_config(), on_samples=lambda step, found: rows.append((step, found))) as (trainer, _):
        assert trainer.evaluate(PROMPTS[:4]) == trainer.evaluate(PROMPTS[:4])
    assert rows[0] == rows[1]
    step, found = rows[0]
    assert (step, [row["prompt"] for row in found]) == (0, PROMPTS[:4])
    assert set(found[0]) == {"prompt", "response", "finished", "score", "kl"}


def test_each_iterations_log_ratio_is_watched(monkeypatch):
    seen = []
    with running(tiny_config(num_iterations=2)) as (trainer, reported):
        monkeypatch.setattr(trainer.kl_watch, "see", seen.append)
        trainer.train(PROMPTS)
    assert seen == [metrics["kl/ref_token_mean"] for metrics in iterations(reported)]
