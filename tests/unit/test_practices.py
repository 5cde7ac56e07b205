"""Each practice of the documents speaks up where it is not followed, and is quiet where it is."""

from dataclasses import replace
from typing import get_args

import pytest

from rlcore.configs import (
    DPOConfig,
    GRPOConfig,
    ORPOConfig,
    PPOConfig,
    PracticeName,
    PracticesConfig,
    RewardModelConfig,
    StageConfig,
    recommended_ranges,
)
from rlcore.errors import ConfigError
from rlcore.practices import PRACTICES, Facts, FullTraining, Names, PairFigures, findings, raise_refusals, ranges_of

NAMES = Names(lambda field: f"x.{field}", "silence {}", "more rows", "practices.{}")
START = {"model_name": "start"}


def ppo(**settings) -> Facts:
    """PPO with the defaults but for these, which follow every practice."""
    good = {"value_warmup_iterations": 1, "mini_batch_size": 8, "kl_target": 2.0, "kl_target_unit": "sequence"}
    return of("ppo", PPOConfig(**START | good | settings))


def dpo(**settings) -> Facts:
    return of("dpo", DPOConfig(**START | settings))


def of(trainer: str, config: StageConfig, **facts) -> Facts:
    return Facts(trainer, config, NAMES, ranges=ranges_of(config, NAMES.setting), **facts)


def known(facts: Facts, **more) -> Facts:
    return replace(facts, **more)


BAD_AND_GOOD: dict[PracticeName, list[tuple[Facts, Facts]]] = {
    "sft_before_rl": [
        (known(ppo(), is_fine_tuned=False), known(ppo(), is_fine_tuned=True)),
        (known(dpo(), is_fine_tuned=False), known(dpo(), is_fine_tuned=None)),
        (known(ppo(), is_fine_tuned=False), known(of("orpo", ORPOConfig(**START)), is_fine_tuned=False)),
    ],
    "reward_model_accuracy": [
        (
            known(ppo(), reward_model="rm", reward_accuracy=0.599),
            known(ppo(), reward_model="rm", reward_accuracy=0.6),
        ),
        # Whoever learns from a function, or from pairs, does not ask the reward model.
        (known(ppo(), reward_model="rm", reward_accuracy=0.5), known(ppo(), reward_accuracy=0.5)),
        (
            known(ppo(), reward_model="rm", reward_accuracy=0.5),
            known(dpo(), reward_model="rm", reward_accuracy=0.5),
        ),
    ],
    "kl_limit": [
        (known(ppo(), max_kl=2.0, kl=2.01), known(ppo(), max_kl=2.0, kl=2.0)),
        (known(dpo(), max_kl=2.0, kl=9.0), known(dpo(), kl=9.0)),
        (of("grpo", GRPOConfig(**START, mini_batch_size=8, kl_penalty_coef=0)), ppo()),
        (dpo(reference_free=True), known(dpo(reference_free=True), max_kl=2.0)),
    ],
    "recommended_ranges": [
        (ppo(gamma=0.89), ppo(gamma=0.9)),
        (ppo(lam=1.0), ppo(lam=0.99)),
        (ppo(value_coef=2.1), ppo(value_coef=2.0)),
        (of("grpo", GRPOConfig(**START, mini_batch_size=8, clip_ratio=0.4)), ppo(clip_ratio=0.3)),
    ],
    "ppo_learning_rate": [
        (ppo(learning_rate=1.1e-5), ppo(learning_rate=1e-5)),
        (ppo(learning_rate=4.9e-6), ppo(learning_rate=5e-6)),
    ],
    "small_initial_kl": [(ppo(kl_penalty_coef=0.21), ppo(kl_penalty_coef=0.2))],
    "responses_per_step": [
        (ppo(mini_batch_size=4), ppo(mini_batch_size=4, gradient_accumulation_steps=2)),
        (
            ppo(batch_size=7, mini_batch_size=4, gradient_accumulation_steps=2),
            ppo(batch_size=8, mini_batch_size=4, gradient_accumulation_steps=2),
        ),
    ],
    "kl_on_target": [
        (known(ppo(), kl_of_target=4.1), known(ppo(), kl_of_target=4.0)),
        (known(ppo(), kl_of_target=0.9), known(ppo(), kl_of_target=1.0)),
    ],
    "value_warmup": [(ppo(value_warmup_iterations=0), ppo(value_warmup_iterations=1))],
    "preference_quality": [
        (
            known(dpo(), pairs=PairFigures(100, dropped=7, repeated=13, contradicting=1)),
            known(dpo(), pairs=PairFigures(100, dropped=7, repeated=13)),
        ),
    ],
    "dpo_learning_rate": [
        (dpo(learning_rate=1.1e-5), dpo(learning_rate=1e-5)),
        (dpo(learning_rate=9e-7), dpo(learning_rate=1e-6)),
        (of("orpo", ORPOConfig(**START, learning_rate=4e-6)), of("orpo", ORPOConfig(**START, learning_rate=5e-6))),
    ],
    "label_smoothing": [
        (
            known(dpo(), pairs=PairFigures(100, contradicting=3)),
            known(dpo(label_smoothing=0.1), pairs=PairFigures(100, contradicting=3)),
        ),
        (
            known(dpo(), pairs=PairFigures(100, contradicting=3)),
            known(dpo(), pairs=PairFigures(100, contradicting=2)),
        ),
    ],
    "frequent_evaluation": [
        (known(dpo(), evaluations=1), known(dpo(), evaluations=2)),
        (known(ppo(), evaluations=0, validation_rows=0), known(ppo(), validation_rows=0)),
    ],
    "balanced_pairs": [
        (
            known(dpo(), pairs=PairFigures(100, longer_share=0.76)),
            known(dpo(), pairs=PairFigures(100, longer_share=0.75)),
        ),
        (
            known(dpo(), pairs=PairFigures(100, longer_share=0.24)),
            known(dpo(), pairs=PairFigures(100, longer_share=0.25)),
        ),
    ],
    "diverse_prompts": [
        (known(ppo(), distinct_prompts={"prompts": 99}), known(ppo(), distinct_prompts={"prompts": 100})),
    ],
    "lora_for_large_models": [
        (
            known(dpo(), full_trainings=(FullTraining("x.lora", "big", 1_000_000_001),)),
            known(dpo(), full_trainings=(FullTraining("x.lora", "small", 10**9), FullTraining("y", "unknown", None))),
        ),
    ],
    "separate_objectives": [
        (
            known(dpo(), pairs=PairFigures(100, objectives=("helpfulness", "safety"))),
            known(dpo(), pairs=PairFigures(100, objectives=("helpfulness",))),
        ),
    ],
}
"""What fires and what does not, for each practice."""

CASES = [(name, *case) for name, cases in BAD_AND_GOOD.items() for case in cases]


def found_in(facts: Facts, **settings) -> dict[str, str]:
    return {finding.practice: finding.message for finding in findings(facts, PracticesConfig(**settings))}


def test_the_seventeen_practices_of_the_documents_have_a_name_and_each_is_tested():
    assert len(PRACTICES) == 17
    assert tuple(PRACTICES) == get_args(PracticeName)
    assert PRACTICES.keys() == BAD_AND_GOOD.keys()
    sources = [practice.source for practice in PRACTICES.values()]
    assert len(set(sources)) == 17
    for group, count in (("PPO guide", 5), ("PPO", 4), ("DPO", 4), ("reward model", 4)):
        assert sum(source.rstrip(" 12345,").endswith(group) for source in sources) == count


@pytest.mark.parametrize(("name", "bad", "good"), CASES, ids=[name for name, *_ in CASES])
def test_a_practice_fires_where_it_is_not_followed_and_alone(name, bad, good):
    assert found_in(bad).keys() == {name}
    assert found_in(good).keys() == set()


@pytest.mark.parametrize(("name", "bad", "good"), CASES, ids=[name for name, *_ in CASES])
def test_a_practice_is_silenced_by_its_name_and_says_how(name, bad, good):
    assert f"To go on without this check: silence {name}." in found_in(bad)[name]
    assert found_in(bad, silence=[name]) == {}
    others = [other for other in PRACTICES if other != name]
    assert found_in(bad, silence=others).keys() == {name}


def test_a_weak_reward_model_refuses_and_everything_else_warns():
    for name, bad, _ in CASES:
        found = findings(bad, PracticesConfig())
        if name != "reward_model_accuracy":
            raise_refusals(found)
            continue
        with pytest.raises(ConfigError, match=r"^reward_model_accuracy: The reward model rm orders 5\d\.\d% of its "):
            raise_refusals(found)


def test_a_threshold_that_can_be_moved_is_named_and_moves():
    bad = known(ppo(), distinct_prompts={"prompts.jsonl": 40})
    assert "or change practices.min_distinct_prompts" in found_in(bad)["diverse_prompts"]
    assert found_in(bad, min_distinct_prompts=40) == {}
    fixed = replace(bad, names=replace(NAMES, threshold=None))
    assert "practices." not in found_in(fixed)["diverse_prompts"]


def test_null_lets_every_reward_model_pass():
    weak = known(ppo(), reward_model="rm", reward_accuracy=0.1)
    assert found_in(weak, min_rm_accuracy=None) == {}


def test_counts_are_said_in_words_that_fit_them():
    weak = known(ppo(), reward_model="rm", reward_accuracy=0.0, reward_pairs=2)
    assert "orders 0.0% of 2 validation pairs rightly" in found_in(weak)["reward_model_accuracy"]
    for count, words in ((1, "evaluated once in all"), (2, "evaluated 2 times in all")):
        rare = known(ppo(), evaluations=count)
        assert words in found_in(rare, min_evaluations=3)["frequent_evaluation"]


def test_what_cannot_be_set_is_not_judged():
    names = replace(NAMES, setting=lambda field: None)
    facts = known(ppo(value_warmup_iterations=0), names=names)
    assert found_in(facts) == {}


def test_nothing_is_said_of_a_reward_model_in_training_that_nothing_is_known_of():
    assert found_in(of("reward", RewardModelConfig(**START))) == {}


def test_messages_say_what_was_found_and_what_is_recommended():
    assert found_in(ppo(learning_rate=5e-4))["ppo_learning_rate"].startswith(
        "x.learning_rate=0.0005 is outside the recommended range of 5e-06 to 1e-05. Choose a value within. "
    )
    pairs = PairFigures(1000, dropped=100, repeated=150, contradicting=50)
    assert found_in(known(dpo(label_smoothing=0.1), pairs=pairs))["preference_quality"].startswith(
        "30.0% of 1000 preference pairs are of no use (100 faulty, 150 repeated, 50 contradicting), recommended at "
        "most 20.0%. Clean them"
    )
    assert (
        "is the shorter one in 80.0% of"
        in found_in(known(dpo(), pairs=PairFigures(5, longer_share=0.2)))["balanced_pairs"]
    )


@pytest.mark.parametrize(
    ("facts", "advice"),
    [
        (known(ppo(), max_kl=2.0, kl=3.0), "Lower the learning rate, or raise x.kl_penalty_coef."),
        (known(dpo(), max_kl=2.0, kl=3.0), "Lower the learning rate, or raise x.beta."),
        # The beta of ORPO pulls to no reference.
        (known(of("orpo", ORPOConfig(**START)), max_kl=2.0, kl=3.0), "Lower the learning rate, or lower x.num_epochs."),
        (ppo(kl_penalty_coef=0), "Set x.kl_penalty_coef above 0, or watch"),
        (dpo(reference_free=True), "Set x.reference_free to false, or watch"),
    ],
)
def test_a_policy_that_is_not_held_is_advised_what_holds_it(facts, advice):
    assert advice in found_in(facts)["kl_limit"]


def test_the_setting_that_makes_a_step_small_is_named():
    assert "Raise x.gradient_accumulation_steps" in found_in(ppo(mini_batch_size=4))["responses_per_step"]
    few = ppo(batch_size=7, mini_batch_size=4, gradient_accumulation_steps=2)
    assert found_in(few)["responses_per_step"].startswith("7 responses make one optimiser step")
    assert "Raise x.batch_size" in found_in(few)["responses_per_step"]


@pytest.mark.parametrize("names", ["kl_limit,value_warmup", ["kl_limit", "value_warmup", "kl_limit"]])
def test_names_come_as_a_list_or_with_commas_between_them(names):
    assert PracticesConfig(silence=names).silence == ("kl_limit", "value_warmup")


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError) as raised:
        PracticesConfig(silence="kl_limit,slow_and_steady")
    assert "found 'slow_and_steady'" in str(raised.value)
    assert all(name in str(raised.value) for name in PRACTICES)


@pytest.mark.parametrize("config_class", [PPOConfig, GRPOConfig, DPOConfig, ORPOConfig])
def test_a_recommended_range_stands_in_the_docstring_and_holds_the_default(config_class):
    for name, recommended in recommended_ranges(config_class):
        field = config_class.model_fields[name]
        low, _, high = str(field.description).partition("Recommended: ")[2].split()[:3]
        assert (float(low), float(high.rstrip("."))) == (recommended.low, recommended.high), name
        assert field.default in recommended, name
