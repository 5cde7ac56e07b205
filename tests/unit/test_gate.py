import math
import re

import pytest

from rlcore.configs import GateConfig
from tasks.gate import ADVICE, UNMEASURED, decide
from tasks.measuring.figures import FIGURES as DRAWN
from tasks.records.artifacts import ANSWERS, EVALUATE, FIGURES, PREFERENCES, TRACES
from tasks.records.parameters import SECTIONS

CONFIG = GateConfig(min_gain={"gold": 0.10, "number_right": 0.15})
"""Of the embedded data set, whose checker measures both."""
MIN_RM_ACCURACY = 0.75


def evaluation(gold_gain: float, number_gain: float, kl: float, drop: float, length_ratio: float, ended: float) -> dict:
    """The numbers that the gate reads, for a policy after a first training."""
    return {
        "gold/sft": 0.38,
        "gold/policy": 0.38 + gold_gain,
        "gold/gain": gold_gain,
        "gold/gain_low": gold_gain - 0.08,
        "number_right/gain": number_gain,
        "number_right/gain_low": number_gain - 0.08,
        "kl/ref_sequence_mean": kl,
        "validation_gold/best": 0.8,
        "validation_gold/published": 0.8 - drop,
        "response/length_mean/sft": 7.4,
        "response/length_mean/policy": 7.4 * length_ratio,
        "response/eos_fraction/policy": ended,
        "reward_model/accuracy": 0.9,
        "reward_model/calibration_error": 0.04,
        "data/leak_share": 0.0,
        "response/non_finite_count/policy": 0,
    }


GOOD = evaluation(0.46, 0.25, 1.36, 0.0, 1.14, 0.997)


def refused(metrics: dict, config: GateConfig | None = None) -> set[str]:
    return {reason.rule for reason in decide(config or CONFIG, metrics, MIN_RM_ACCURACY).refusals}


@pytest.mark.parametrize(
    "metrics",
    [GOOD, evaluation(0.45, 0.21, 1.00, 0.01, 1.17, 0.993), evaluation(0.48, 0.25, 1.12, 0.02, 1.18, 1.0)],
    ids=["seed 0", "seed 1", "seed 2"],
)
def test_policies_that_learnt_pass(metrics: dict):
    report = decide(CONFIG, metrics, MIN_RM_ACCURACY)
    assert report.passed
    assert len(report.reasons) == 13  # a gain and its lower end for two measures, and nine budgets


@pytest.mark.parametrize(
    ("metrics", "rules"),
    [
        (evaluation(0.32, 0.13, 2.26, 0.12, 1.18, 0.997), {"number_right/gain", "kl_sequence", "drop_from_best"}),
        (
            evaluation(0.18, -0.06, 3.09, 0.16, 1.27, 1.0),
            {"number_right/gain", "number_right/gain_low", "kl_sequence", "drop_from_best"},
        ),
        (
            evaluation(0.097, -0.13, 4.52, 0.24, 1.2, 1.0),
            {"gold/gain", "number_right/gain", "number_right/gain_low", "kl_sequence", "drop_from_best"},
        ),
        (evaluation(0.20, 0.0, 0.40, 0.0, 1.12, 1.0), {"number_right/gain", "number_right/gain_low"}),
        (
            evaluation(-0.37, -0.58, 46.7, 0.53, 1.87, 0.41),
            {
                "gold/gain",
                "gold/gain_low",
                "number_right/gain",
                "number_right/gain_low",
                "kl_sequence",
                "drop_from_best",
                "max_length_ratio",
                "eos_fraction",
            },
        ),
        (
            evaluation(-0.21, -0.21, 0.96, 0.21, 0.95, 0.997),
            {"gold/gain", "gold/gain_low", "number_right/gain", "number_right/gain_low", "drop_from_best"},
        ),
    ],
    ids=["KL off 0", "KL off 1", "KL off 2", "score on the first token", "KL sign", "poison"],
)
def test_planted_faults_are_refused_for_their_reasons(metrics: dict, rules: set[str]):
    assert refused(metrics) == rules


def test_a_tie_does_not_pass():
    assert refused({**GOOD, "gold/gain": 0.10}) == {"gold/gain"}
    assert refused({**GOOD, "gold/gain_low": 0.0}) == {"gold/gain_low"}


def test_a_budget_may_be_used_up():
    used_up = {"kl/ref_sequence_mean": 2.0, "response/eos_fraction/policy": 0.98, "reward_model/accuracy": 0.75}
    assert refused({**GOOD, **used_up}) == set()


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_was_not_measured_does_not_pass(value: float | None):
    for name in GOOD:
        if name in ("gold/sft", "gold/policy"):  # the gate reads the gain
            continue
        metrics = {key: GOOD[key] for key in GOOD if key != name}
        report = decide(CONFIG, metrics if value is None else {**metrics, name: value}, MIN_RM_ACCURACY)
        assert not report.passed, name
        assert all(reason.found is None for reason in report.refusals), name


@pytest.mark.parametrize(
    ("low", "refusals"),
    [(0.52, set()), (0.5, {"win/rate_over_champion_low"}), (math.nan, {"win/rate_over_champion_low"})],
    ids=["better", "tie", "not measured"],
)
def test_a_champion_must_be_beaten_beyond_chance(low: float, refusals: set[str]):
    against = {"gold/champion": 0.84, "win/rate_over_champion": 0.56, "win/rate_over_champion_low": low}
    assert refused({**GOOD, **against}) == refusals


def test_without_a_champion_there_is_no_one_to_beat():
    assert refused({**GOOD, "win/rate_over_champion_low": 0.1}) == set()


def test_a_champion_whose_measure_failed_is_not_beaten():
    assert refused({**GOOD, "gold/champion": math.nan}) == {"win/rate_over_champion_low"}


@pytest.mark.parametrize(
    ("measure", "value", "rule"),
    [
        ("reward_model/calibration_error", 0.26, "calibration_error"),
        ("data/leak_share", 0.001, "leak_share"),
        ("response/non_finite_count/policy", 1, "non_finite"),
    ],
)
def test_an_unsure_judge_a_leak_and_broken_numbers_are_refused(measure: str, value: float, rule: str):
    assert refused({**GOOD, measure: value}) == {rule}


def test_null_conditions_are_not_checked():
    nulls = dict.fromkeys(["max_kl_sequence", "max_drop_from_best", "max_calibration_error", "max_leak_share"])
    config = GateConfig(min_gain={}, max_non_finite=None, **nulls)
    bad = evaluation(-1, -1, 50, 0.5, 1.1, 1.0)
    assert [reason.rule for reason in decide(config, bad, None).reasons] == [
        "min_length_ratio",
        "max_length_ratio",
        "eos_fraction",
    ]
    assert decide(config, bad, None).passed


def test_repetition_and_gibberish_have_budgets():
    config = GateConfig(min_gain={}, min_distinct_ratio=0.8, max_perplexity_ratio=1.5)
    text = {"response/distinct_2/sft": 0.5, "response/distinct_2/policy": 0.39}
    text |= {"response/perplexity/sft": 10.0, "response/perplexity/policy": 15.1}
    assert refused({**GOOD, **text}, config) == {"distinct_ratio", "perplexity_ratio"}
    text |= {"response/distinct_2/policy": 0.41, "response/perplexity/policy": 14.9}
    assert refused({**GOOD, **text}, config) == set()


def test_a_reason_reads_well():
    reasons = {reason.rule: str(reason) for reason in decide(CONFIG, {"kl/ref_sequence_mean": 2.26}, None).reasons}
    assert reasons["kl_sequence"] == "kl_sequence: 2.26, bound 2, refused"
    assert reasons["gold/gain"] == "gold/gain: not measured, bound more than 0.1, refused"


def test_without_a_checker_the_refusal_names_the_settings_and_these_settings_pass():
    without = {name: value for name, value in GOOD.items() if "gold" not in name and "number_right" not in name}
    without |= {"win/gain": 0.3, "win/gain_low": 0.1}
    gain, drop = decide(GateConfig(), without, MIN_RM_ACCURACY).advice
    assert gain.startswith("gold/gain, gold/gain_low: Name a checker that measures it in evaluate.gold")
    assert "set gate.min_gain to {win: 0}" in gain
    assert drop.startswith("drop_from_best: It takes a checker")
    assert "set gate.max_drop_from_best to null" in drop
    assert "with dpo and orpo, validation pairs" in drop
    assert refused(without, GateConfig(min_gain={"win": 0}, max_drop_from_best=None)) == set()


@pytest.mark.parametrize(("least", "refuses"), [(None, False), (0.9, False), (0.91, True)])
def test_the_least_accuracy_of_the_reward_model_is_asked_at_the_gate_too(least: float | None, refuses: bool):
    report = decide(CONFIG, GOOD, least)  # GOOD has 0.9
    assert [reason.rule for reason in report.refusals] == ["reward_model_accuracy"] * refuses


def test_every_refusal_says_where_to_look_and_what_to_change():
    config = GateConfig(
        min_gain={"gold": 0.1},
        min_distinct_ratio=0.8,
        max_perplexity_ratio=1.5,
        max_length_ratio=0.5,
        min_length_ratio=2,
    )
    bad = evaluation(0.0, 0.0, 9.0, 0.4, 1.0, 0.5) | {"gold/champion": 0.5, "win/rate_over_champion_low": 0.4}
    bad |= {
        f"response/{name}/{model}": size for name, size in (("distinct_2", 1), ("perplexity", 9)) for model in ("sft",)
    }
    bad |= {"response/distinct_2/policy": 0.1, "response/perplexity/policy": 90, "reward_model/accuracy": 0.4}
    bad |= {"reward_model/calibration_error": 0.5, "data/leak_share": 1, "response/non_finite_count/policy": 1}
    report = decide(config, bad, MIN_RM_ACCURACY)
    assert all(not reason.passed and reason.advice for reason in report.reasons)
    assert {reason.advice for reason in report.reasons} == set(ADVICE.values())
    (kl,) = (advice for advice in report.advice if advice.startswith("kl_sequence: "))
    assert "data/metrics/figures/kl.png" in kl
    assert "Raise kl_penalty_coef" in kl


def test_files_and_figures_that_advice_names_are_written():
    text = " ".join(ADVICE.values())
    named = {word.strip(",.:()") for word in text.split() if word.startswith("data/")} - {"data/leak_share"}
    known = {str(path) for path in (ANSWERS, EVALUATE, PREFERENCES["held_out"], TRACES["reward"])}
    assert named == known | {f"{FIGURES}/{name}.png" for name in ("learning", "kl", "health", "comparison")}
    assert {"learning", "kl", "health", "comparison"} <= set(DRAWN)


def test_settings_that_advice_names_exist():
    text = " ".join([*ADVICE.values(), *UNMEASURED.values()])
    for section, name in re.findall(r"(?<![/a-z])(validate|reward|evaluate|gate)\.([a-z_]+)", text):
        assert name in SECTIONS[section].model_fields, name
    assert {"kl_penalty_coef", "missing_eos_score"} <= set(SECTIONS["ppo"].model_fields) & set(
        SECTIONS["grpo"].model_fields
    )
    assert "beta" in SECTIONS["dpo"].model_fields
    assert "beta" in SECTIONS["orpo"].model_fields


def test_a_kl_that_is_rounding_is_shown_as_0():
    (reason,) = [
        reason
        for reason in decide(CONFIG, {**GOOD, "kl/ref_sequence_mean": -3.75e-07}, MIN_RM_ACCURACY).reasons
        if reason.rule == "kl_sequence"
    ]
    assert str(reason).startswith("kl_sequence: 0, bound ")
