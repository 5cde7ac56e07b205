import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from rlcore.configs import EvaluateConfig, GateConfig
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.models import load_causal_lm, load_tokenizer
from rlcore.reward import RewardModelSource
from tasks.evaluate import evaluate, measure_models, validation_checks, validation_gold
from tasks.gate import decide
from tasks.records import artifacts
from tasks.records.artifacts import (
    ANSWERS,
    CHAMPION_DIR,
    DEMONSTRATIONS,
    EVALUATE,
    FIGURES,
    NO_CHAMPION,
    POLICY_DIR,
    PREFERENCES,
    REWARD_DIR,
    SAMPLES,
    SFT_DIR,
    TRACES,
    read_json,
    read_rows,
    write_rows,
)
from tasks.records.trace import last_values
from tests.support.metric_names import unexplained
from tests.support.workspace import HELD_OUT, VALIDATION, make_workspace, save_model

CONFIG = EvaluateConfig(samples_per_prompt=3, max_new_tokens=6, bootstrap_samples=100, example_prompts=3)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which `evaluate` ran."""
    folder = make_workspace(tmp_path_factory.mktemp("workspace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        evaluate(CONFIG)
    return folder


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, config: EvaluateConfig = CONFIG) -> dict[str, float]:
    monkeypatch.chdir(folder)
    evaluate(config)
    return read_json(EVALUATE)


def test_evaluate_json_holds_plain_numbers_with_intervals(measured: Path):
    metrics = json.loads((measured / EVALUATE).read_text(), parse_constant=pytest.fail)
    for name in ("gold/sft", "gold/policy", "number_right/policy", "reward/score_mean", "kl/ref_sequence_mean"):
        assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"]
    needed = {"gold/gain", "number_right/gain_low", "gold_greedy/sft", "gold_greedy/policy", "kl/ref_token_mean"}
    needed |= {"response/length_mean/sft", "response/eos_fraction/policy", "response/distinct_2/sft", "win/policy"}
    assert needed | {"reward_model/accuracy", "reward/score_mean/sft"} <= set(metrics)
    assert all(type(value) is float for value in metrics.values())
    assert metrics["win/policy"] + metrics["win/sft"] + metrics["win/tie"] == pytest.approx(1.0)
    assert metrics["reward/score_mean"] == metrics["reward/score_mean/policy"]
    assert metrics["reward_model/accuracy_longer_wins"] == 0.0  # every chosen answer is a bare number
    # The gate finds all it asks for, and refuses a random policy.
    report = decide(GateConfig(), metrics, 0.75)
    assert all(reason.found is not None for reason in report.reasons)
    assert not report.passed


def test_every_number_is_explained(measured: Path):
    names = set(read_json(measured / EVALUATE)) | set(last_values(read_rows(measured / TRACES["evaluate"])))
    assert {"gold_greedy/sft", "win/gain_low", "response/distinct_1/sft", "validation/gold"} <= names
    assert unexplained(names, ("gold", "number_right", "format_right")) == set()


def test_kl_is_the_difference_of_two_forward_passes(measured: Path):
    """Log-probabilities of every sampled answer, one row at a time in float64, without padding or cache."""
    reward = RewardModelSource(measured / REWARD_DIR)
    folders = {"sft": measured / SFT_DIR, "policy": measured / POLICY_DIR}
    sheets, kl = measure_models(CONFIG, HELD_OUT, folders, reward, None)
    policy, sft = (load_causal_lm(folder).double() for folder in (folders["policy"], folders["sft"]))
    answers = sheets["policy"].answers
    assert len(answers.texts) == len(HELD_OUT) * 3
    for prompt_ids, response_ids, nats in zip(answers.prompt_ids, answers.response_ids, kl, strict=True):
        ids = torch.tensor([prompt_ids + response_ids])
        difference = []
        for model in (policy, sft):
            with torch.no_grad():
                logprobs = model(ids).logits[0, len(prompt_ids) - 1 : -1].log_softmax(-1)
            difference.append(logprobs.gather(1, torch.tensor(response_ids)[:, None])[:, 0])
        # float32 against float64
        torch.testing.assert_close(torch.tensor(nats), (difference[0] - difference[1]).float(), rtol=1e-3, atol=1e-4)
    metrics = read_json(measured / EVALUATE)
    assert metrics["kl/ref_sequence_mean"] == pytest.approx(sum(map(sum, kl)) / len(kl), abs=1e-5)
    tokens = sum(len(each) for each in kl)
    assert metrics["kl/ref_token_mean"] == pytest.approx(sum(map(sum, kl)) / tokens, abs=1e-5)
    assert abs(metrics["kl/ref_sequence_mean"]) > 0.1  # two random models differ


def test_scores_and_lengths_belong_to_their_answers(measured: Path):
    reward = RewardModelSource(measured / REWARD_DIR)
    folders = {"sft": measured / SFT_DIR, "policy": measured / POLICY_DIR}
    sheet = measure_models(CONFIG, HELD_OUT, folders, reward, None)[0]["policy"]
    row = 7  # third prompt (index 2), second answer
    prompt = HELD_OUT[2]["prompt"]
    assert sheet.sampled["reward/score_mean"][row] == pytest.approx(reward([prompt], [sheet.answers.texts[row]])[0])
    chat = ChatFormat(load_tokenizer(measured / POLICY_DIR))
    assert sheet.answers.prompt_ids[row] == chat.encode_prompt(prompt)
    assert sheet.sampled["response/length_mean"][row] == len(sheet.answers.response_ids[row])
    ended = [ids[-1] == chat.end_id for ids in sheet.answers.response_ids]
    assert sheet.answers.finished == ended


def test_a_policy_that_learnt_nothing_ties_with_sft_and_with_the_champion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_workspace(tmp_path, policy_seed=0)
    (tmp_path / NO_CHAMPION).unlink()
    save_model(tmp_path / CHAMPION_DIR, 0)
    metrics = run(tmp_path, monkeypatch)
    assert metrics["kl/ref_sequence_mean"] == pytest.approx(0.0, abs=1e-4)
    assert metrics["win/tie"] == 1.0
    for gain in ("gain", "gain_over_champion"):
        for name in ("gold", "number_right", "reward/score_mean", "win"):
            assert [metrics[f"{name}/{gain}{end}"] for end in ("", "_low", "_high")] == [0.0, 0.0, 0.0]
    assert metrics["gold/champion"] == metrics["gold/policy"]


def test_the_seed_decides_every_number(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = read_json(measured / EVALUATE)
    shutil.copytree(measured, tmp_path / "again")
    assert run(tmp_path / "again", monkeypatch) == first
    assert run(tmp_path / "again", monkeypatch, CONFIG.model_copy(update={"seed": 1})) != first


def test_without_a_checker_the_reward_model_judges(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(measured, tmp_path / "copy")
    metrics = run(tmp_path / "copy", monkeypatch, CONFIG.model_copy(update={"gold": None}))
    assert not [name for name in metrics if name.startswith(("gold", "number_right", "validation_gold"))]
    assert metrics["win/policy"] + metrics["win/sft"] == 1.0  # scores of different answers do not tie
    assert metrics["win/gain"] == pytest.approx(metrics["win/policy"] - metrics["win/sft"])


def manners(row: dict, response: str, finished: bool) -> dict[str, float]:
    """A checker that has no measure of the name gold."""
    return {"words": float(len(response.split()))}


def test_a_checker_may_measure_other_things_than_gold(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(measured, tmp_path / "copy")
    metrics = run(tmp_path / "copy", monkeypatch, CONFIG.model_copy(update={"gold": f"{__name__}:manners"}))
    assert {"words/policy", "words/gain", "words/gain_low", "win/gain"} <= set(metrics)
    assert not [name for name in metrics if "gold" in name]
    assert "validation/words" in read_rows(TRACES["evaluate"])[0]


def test_a_checker_whose_measures_differ_between_answers_is_refused(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(measured, tmp_path / "copy")
    with pytest.raises(DataError, match="evaluate.gold: measured gold for one answer, and length for another"):
        run(tmp_path / "copy", monkeypatch, CONFIG.model_copy(update={"gold": f"{__name__}:fickle"}))


def fickle(row: dict, response: str, finished: bool) -> dict[str, float]:
    """Measures one thing or another."""
    return {"gold" if row["prompt"].startswith("Add 1") else "length": 1.0}


def test_perplexity_is_that_of_the_answers_under_the_text_model(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(measured, tmp_path / "copy")
    config = CONFIG.model_copy(update={"text_model": str(SFT_DIR)})
    metrics = run(tmp_path / "copy", monkeypatch, config)
    reward = RewardModelSource(REWARD_DIR)
    sheets, _ = measure_models(config, HELD_OUT, {"sft": SFT_DIR, "policy": POLICY_DIR}, reward, None)
    model, chat = load_causal_lm(SFT_DIR).double(), ChatFormat(load_tokenizer(SFT_DIR))
    nats: list[float] = []
    for row, text in enumerate(sheets["policy"].answers.texts):
        prompt_ids, ids = chat.encode_prompt(HELD_OUT[row // 3]["prompt"]), chat.encode_response(text)
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt_ids + ids])).logits[0, len(prompt_ids) - 1 : -1].log_softmax(-1)
        nats += [float(logprobs[place, token]) for place, token in enumerate(ids)]
    assert metrics["response/perplexity/policy"] == pytest.approx(math.exp(-sum(nats) / len(nats)), rel=1e-4)
    # what a model says is likelier under itself than what another one says
    assert metrics["response/perplexity/sft"] < metrics["response/perplexity/policy"]


def test_gold_is_followed_over_the_iterations(measured: Path):
    # 0, 1, 2 and 3 of 4 answers are right; every answer holds one number
    trace = read_rows(measured / TRACES["evaluate"])
    gold = [(row["step"], row["validation/gold"]) for row in trace if "validation/gold" in row]
    assert gold == [(0, 0.0), (3, 0.25), (6, 0.5), (9, 0.75)]
    metrics = read_json(measured / EVALUATE)
    # neighbours averaged: (0 + .25) / 2, .25, .5, (.5 + .75) / 2; step 6 is published
    assert metrics["validation_gold/best"] == pytest.approx(0.625)
    assert metrics["validation_gold/final"] == pytest.approx(0.625)
    assert metrics["validation_gold/published"] == pytest.approx(0.5)


def test_a_fall_from_the_best_shows():
    checks = {step: {"validation/gold": gold} for step, gold in ((0, 0.4), (8, 0.8), (16, 0.9), (24, 0.7), (32, 0.5))}
    # averages .6, .7, .8, .7, .6
    assert validation_gold(checks, 32.0) == pytest.approx(
        {"validation_gold/best": 0.8, "validation_gold/final": 0.6, "validation_gold/published": 0.6}
    )
    assert validation_gold(checks, None)["validation_gold/published"] == pytest.approx(0.6)
    assert validation_gold({}, 3.0) == {}


def test_the_checker_sees_answers_to_validation_prompts_alone_and_the_reward_model_all():
    # A trainer on pairs answers the prompts of its pairs: of three answers one is to a prompt that the checker knows.
    known = VALIDATION[0]["prompt"]
    asked = [(0, known, "1"), (0, "What is 9 plus 9?", "18"), (5, "What is 9 plus 9?", "18")]
    samples = [
        {"step": step, "prompt": prompt, "response": response, "finished": True} for step, prompt, response in asked
    ]
    views = validation_checks(
        samples,
        VALIDATION,
        lambda prompts, responses: [float(response) for response in responses],
        lambda row, response, finished: {"gold": float(response == str(row["answer"]))},
    )
    # Step 0: mean of 1 and 18, and 0 + 1 = 1 is right. Step 5: nothing to check.
    assert views == {
        0: {"validation/reward_model_score_mean": 9.5, "validation/gold": 1.0},
        5: {"validation/reward_model_score_mean": 18.0},
    }
    assert validation_gold(views, 5.0) == {}


def test_answers_before_and_after_are_kept(measured: Path):
    rows = read_rows(measured / SAMPLES["evaluate"])
    assert len({row["prompt"] for row in rows}) == 3
    columns = {"step", "prompt", "before", "after", "score_before", "score_after", "gold_before", "gold_after"}
    assert set(rows[0]) == columns
    assert {path.suffix for path in (measured / FIGURES).iterdir()} == {".png"}


def test_every_answer_is_kept_with_what_the_means_are_made_of(measured: Path):
    rows, metrics = read_rows(measured / ANSWERS), read_json(measured / EVALUATE)
    assert len(rows) == 2 * len(HELD_OUT) * CONFIG.samples_per_prompt
    ours = [row for row in rows if row["model"] == "policy"]
    assert [row["group"] for row in ours[::3]] == [row["group"] for row in HELD_OUT]
    for column, name in (
        ("gold", "gold/policy"),
        ("reward/score_mean", "reward/score_mean"),
        ("response/length_mean", "response/length_mean/policy"),
        ("kl/ref_sequence_mean", "kl/ref_sequence_mean"),
    ):
        assert sum(row[column] for row in ours) / len(ours) == pytest.approx(metrics[name])


def test_figures_are_those_of_how_the_policy_learned(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    both = {"learning.png", "comparison.png"}
    assert {path.name for path in (measured / FIGURES).iterdir()} == both | {
        "kl.png",
        "over_optimisation.png",
        "health.png",
    }
    shutil.copytree(measured, tmp_path / "pairs")
    monkeypatch.chdir(tmp_path / "pairs")
    shutil.rmtree(FIGURES)
    trace = [{"step": 3, "time": 0.0, "dpo/loss": 0.6, "dpo/accuracy": 0.7, "validation/loss": 0.5}]
    write_rows(TRACES["policy"], [*trace, {"step": 3, "time": 0.0, "best/step": 3.0}])
    evaluate(CONFIG)
    assert {path.name for path in FIGURES.iterdir()} == both | {"pairs.png"}


def test_faults_of_settings_and_data_are_named(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(measured, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    with pytest.raises(ConfigError, match="leaves no room for a prompt"):
        evaluate(CONFIG.model_copy(update={"max_new_tokens": 128}))
    with pytest.raises(ConfigError, match="evaluate.gold"):
        evaluate(CONFIG.model_copy(update={"gold": "nothing"}))
    write_rows(artifacts.PROMPTS["held_out"], [])
    with pytest.raises(DataError, match="found 0 prompts"):
        evaluate(CONFIG)


def test_the_win_rate_is_the_win_share_with_half_the_ties(measured: Path):
    metrics = read_json(measured / EVALUATE)
    assert metrics["win/rate_over_sft"] == pytest.approx(metrics["win/policy"] + metrics["win/tie"] / 2)
    assert metrics["win/rate_over_sft_low"] == pytest.approx((1 + metrics["win/gain_low"]) / 2)
    assert "win/rate_over_champion" not in metrics


def test_the_judge_is_asked_whether_it_is_as_sure_as_it_is_right(measured: Path):
    pairs = read_rows(measured / PREFERENCES["held_out"])
    reward = RewardModelSource(measured / REWARD_DIR)
    scale = reward.model.reward_scale.item()
    sides = (
        reward([pair["prompt"] for pair in pairs], [pair[side] for pair in pairs]) for side in ("chosen", "rejected")
    )
    margins = [(better - worse) * scale for better, worse in zip(*sides, strict=True)]
    # All six confidences of a random model lie in few bins; the sums within each are worked out one pair at a time.
    bins: dict[int, float] = {}
    for margin in margins:
        confidence = 1 / (1 + math.exp(-abs(margin)))
        index = min(int((confidence - 0.5) * 20), 9)
        bins[index] = bins.get(index, 0.0) + confidence - float(margin > 0)
    expected = sum(map(abs, bins.values())) / len(pairs)
    assert read_json(measured / EVALUATE)["reward_model/calibration_error"] == pytest.approx(expected, abs=1e-5)


def test_answers_that_cannot_be_scored_are_counted(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(measured, tmp_path / "copy")
    ask = RewardModelSource.__call__

    def broken(self, prompts, responses, metadata=None):
        scores = ask(self, prompts, responses, metadata)
        return [math.nan, math.inf, *scores[2:]]

    monkeypatch.setattr(RewardModelSource, "__call__", broken)
    metrics = run(tmp_path / "copy", monkeypatch)
    assert metrics["response/non_finite_count/policy"] == 2.0
    assert "non_finite" in {reason.rule for reason in decide(GateConfig(), metrics, None).refusals}


def test_a_held_out_prompt_in_the_training_data_is_noticed(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(measured, tmp_path / "copy")
    assert read_json(measured / EVALUATE)["data/leak_share"] == 0.0
    rows = read_rows(measured / DEMONSTRATIONS["train"])
    write_rows(tmp_path / "copy" / DEMONSTRATIONS["train"], [*rows, {"prompt": HELD_OUT[0]["prompt"].upper()}])
    metrics = run(tmp_path / "copy", monkeypatch)
    assert metrics["data/leak_share"] == pytest.approx(1 / len({row["prompt"] for row in HELD_OUT}))
    assert metrics["data/leak_share_exact"] == 0.0
