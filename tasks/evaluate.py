"""Stage `evaluate`: the policy beside its SFT start and the champion, on prompts that no stage has seen."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from rlcore.configs import EvaluateConfig, PPOConfig, StageConfig
from rlcore.errors import DataError
from rlcore.pair_training import calibration_error, calibration_gaps
from rlcore.reward import RewardModelSource
from rlcore.sampling import SamplingParams
from rlcore.streams import stream_seed
from tasks.demos import named_function
from tasks.intake.text.text_rows import text_rows
from tasks.measuring import figures, measures
from tasks.measuring.answers import Answers, Speaker
from tasks.measuring.curves import write_curves
from tasks.measuring.leaks import leak_shares
from tasks.measuring.pair_accuracy import longer_wins, model_margins
from tasks.records.artifacts import (
    ANSWERS,
    CHAMPION_DIR,
    CURVES_DIR,
    DEMONSTRATIONS,
    EVALUATE,
    FIGURES,
    NO_CHAMPION,
    POLICY_DIR,
    PREFERENCES,
    PROMPTS,
    REWARD_DIR,
    SAMPLES,
    SFT_DIR,
    TRACES,
    read_rows,
    write_json,
    write_rows,
)
from tasks.records.parameters import load_parameters
from tasks.records.stage import main, stage
from tasks.records.trace import finite, last_values

Gold = Callable[[Mapping[str, Any], str, bool], Mapping[str, float]]
Row = Mapping[str, Any]

SCORE, LENGTH, ENDED = "reward/score_mean", "response/length_mean", "response/eos_fraction"
KL = "kl/ref_sequence_mean"
NON_FINITE = "response/non_finite_count"


@dataclass(frozen=True)
class Sheet:
    """Answers of one model to all prompts and what was measured on them."""

    answers: Answers
    sampled: dict[str, list[float]]
    """Measure → one value for each sampled answer: what the checker says, score, length, whether it ended."""
    greedy: dict[str, list[float]]
    """What the checker says of the likeliest answer to each prompt."""


def evaluate(config: EvaluateConfig) -> None:
    """Measure the models, draw the figures and keep answers to be read.

    Raises:
        ConfigError: `gold` names no function, or max_new_tokens leaves no room for a prompt.
        DataError: there are no held-out prompts, or the checker cannot read a row.
    """
    gold: Gold | None = named_function("evaluate.gold", config.gold) if config.gold else None
    rows = text_rows(PROMPTS["held_out"])
    if not rows:
        raise DataError(f"{PROMPTS['held_out']}: found 0 prompts. Raise validate.held_out_share, or add prompts.")
    with stage("evaluate", config) as run:
        reward = RewardModelSource(REWARD_DIR)
        sheets, kl = measure_models(config, rows, _folders(), reward, gold)
        metrics = {**compare_models(config, rows, sheets, kl), **reward_accuracy(config, reward)}
        if config.text_model is not None:
            metrics.update(perplexities(Path(config.text_model), _repeated(rows, config), sheets))
        metrics.update(leak_shares(rows, (DEMONSTRATIONS["train"], PREFERENCES["train"], PROMPTS["train"])))
        write_rows(ANSWERS, answer_rows(_repeated(rows, config), sheets, kl))
        checks = validation_checks(read_rows(SAMPLES["policy"]), text_rows(PROMPTS["validation"]), reward, gold)
        policy_trace = read_rows(TRACES["policy"])
        published = last_values(policy_trace).get("best/step")
        metrics.update(validation_gold(checks, published))
        for step, values in checks.items():
            run.log(step, values)
        run.log_samples(0, examples(config, rows, sheets))
        write_json(EVALUATE, finite(metrics))
        write_curves(policy_trace, CURVES_DIR)
        figures.draw(_figure_data(policy_trace, checks, metrics, published), FIGURES)
        run.finish()


def measure_models(
    config: EvaluateConfig,
    rows: Sequence[Row],
    folders: Mapping[str, Path],
    reward: RewardModelSource,
    gold: Gold | None,
) -> tuple[dict[str, Sheet], list[list[float]]]:
    """Let every model answer, and read the policy's answers with the SFT model.

    Args:
        config: settings.
        rows: prompts; each is answered samples_per_prompt times.
        folders: name → model folder; `sft` and `policy` are needed.
        reward: scores the answers.
        gold: the checker.

    Returns:
        A sheet for each model; for each answer of the policy the KL to the SFT model, nats of each token (k1).
    """
    sheets: dict[str, Sheet] = {}
    kl: list[list[float]] = []
    # One model at a time is in memory; the policy comes first, so that SFT can read its answers.
    for name in sorted(folders, key=lambda name: name != "policy"):
        speaker = Speaker(folders[name])
        sheets[name] = _answer_all(config, rows, speaker, reward, gold)
        if name == "sft":
            answers = sheets["policy"].answers
            reference = speaker.logprobs_of(answers.prompt_ids, answers.response_ids, config.temperature)
            kl = [(ours - theirs).tolist() for ours, theirs in zip(answers.logprobs, reference, strict=True)]
    return {name: sheets[name] for name in folders}, kl


def compare_models(
    config: EvaluateConfig, rows: Sequence[Row], sheets: Mapping[str, Sheet], kl: Sequence[Sequence[float]]
) -> dict[str, float]:
    """All numbers of evaluate.json that come from answers to the held-out prompts, with their intervals."""
    once = measures.GroupBootstrap([measures.group_of(row) for row in rows], config.bootstrap_samples, config.seed)
    repeated = [measures.group_of(row) for row in _repeated(rows, config)]
    often = measures.GroupBootstrap(repeated, config.bootstrap_samples, config.seed)
    metrics: dict[str, float] = {}
    for model, sheet in sheets.items():
        for name, values in sheet.sampled.items():
            metrics.update(_with_interval(f"{name}/{model}", values, often))
        for name, values in sheet.greedy.items():
            metrics.update(_with_interval(f"{name}_greedy/{model}", values, once))
        for n in (1, 2):
            metrics[f"response/distinct_{n}/{model}"] = measures.distinct_n(sheet.answers.texts, n)
        metrics[f"response/distinct_count/{model}"] = len(set(sheet.answers.texts))
        metrics[f"{NON_FINITE}/{model}"] = _non_finite(sheet, kl if model == "policy" else [])
    metrics.update(_with_interval(SCORE, sheets["policy"].sampled[SCORE], often))
    metrics.update(_with_interval(KL, [sum(tokens) for tokens in kl], often))
    metrics["kl/ref_token_mean"] = measures.mean([nats for tokens in kl for nats in tokens])
    for other in ("sft", "champion"):
        if other in sheets:
            metrics.update(_gains(sheets["policy"], sheets[other], other, often))
    judge = "gold" if "gold" in sheets["policy"].sampled else SCORE
    shares = measures.compare(sheets["policy"].sampled[judge], sheets["sft"].sampled[judge])
    return {**metrics, "win/policy": shares["win"], "win/sft": shares["lose"], "win/tie": shares["tie"]}


def reward_accuracy(config: EvaluateConfig, reward: RewardModelSource) -> dict[str, float]:
    """How often reward model, and length alone, prefer the chosen answer of held-out pairs; nothing without pairs.

    Whether the model is as sure as it is right is asked in its own unit, before its rewards were normalised.
    """
    pairs = text_rows(PREFERENCES["held_out"])
    if not pairs:
        return {}
    margins = model_margins(pairs, reward)
    gaps = calibration_gaps(torch.tensor(margins) * reward.model.reward_scale.item())
    groups = measures.GroupBootstrap([measures.group_of(pair) for pair in pairs], config.bootstrap_samples, config.seed)
    return {
        **_with_interval("reward_model/accuracy", [float(margin > 0) for margin in margins], groups),
        "reward_model/calibration_error": calibration_error(gaps.tolist(), len(pairs)),
        **_with_interval("reward_model/accuracy_longer_wins", longer_wins(pairs), groups),
    }


def perplexities(text_model: Path, rows: Sequence[Row], sheets: Mapping[str, Sheet]) -> dict[str, float]:
    """Perplexity of each model's answers under one language model: gibberish that scores well is unlikely there."""
    reader = Speaker(text_model)
    prompts = [row["prompt"] for row in rows]
    return {
        f"response/perplexity/{model}": measures.perplexity(
            nats.tolist() for nats in reader.text_logprobs(prompts, sheet.answers.texts)
        )
        for model, sheet in sheets.items()
    }


def validation_checks(
    samples: Sequence[Row], prompts: Sequence[Row], reward: RewardModelSource, gold: Gold | None
) -> dict[int, dict[str, float]]:
    """What reward model and checker say of the answers that training sampled for validation prompts, as means.

    Trainers on preference pairs answer the prompts of their validation pairs. Of these the checker knows only what is a
    validation prompt too; answers to others have no check.

    Args:
        samples: what the stage `policy` kept.
        prompts: rows of the validation prompts.
        reward: scores the answers.
        gold: the checker.

    Returns:
        Step → measure → mean, in order of the steps.
    """
    steps: dict[int, list[Row]] = {}
    for sample in samples:
        steps.setdefault(int(sample["step"]), []).append(sample)
    known = {row["prompt"]: row for row in prompts}
    views: dict[int, dict[str, float]] = {}
    for step, answers in sorted(steps.items()):
        scores = reward(*([answer[column] for answer in answers] for column in ("prompt", "response")))
        views[step] = {figures.REWARD_VIEW: measures.mean(scores)}
        asked = [answer for answer in answers if answer["prompt"] in known]
        if gold is not None and asked:
            checked = [gold(known[each["prompt"]], each["response"], each["finished"]) for each in asked]
            views[step] |= {f"validation/{name}": measures.mean(values) for name, values in _columns(checked).items()}
    return views


def validation_gold(checks: Mapping[int, Mapping[str, float]], published: float | None) -> dict[str, float]:
    """Gold on validation prompts at its best, at the last step and at the published one; nothing where no gold is.

    Each is averaged with its neighbours: the best of many noisy measures would be too good, and every run would seem to
    have fallen from it.
    """
    if not checks or not all("validation/gold" in check for check in checks.values()):
        return {}
    values = dict(zip(checks, measures.smoothed([check["validation/gold"] for check in checks.values()]), strict=True))
    last = list(values)[-1]
    return {
        "validation_gold/best": max(values.values()),
        "validation_gold/final": values[last],
        "validation_gold/published": values.get(last if published is None else int(published), values[last]),
    }


def examples(config: EvaluateConfig, rows: Sequence[Row], sheets: Mapping[str, Sheet]) -> list[dict[str, Any]]:
    """Prompts spread over the held-out ones, with the first sampled answer before and after training."""
    first = {row["prompt"]: index for index, row in reversed(list(enumerate(rows)))}
    indices = sorted(first.values())
    count = min(config.example_prompts, len(indices))
    table = []
    for index in (indices[position * len(indices) // count] for position in range(count)):
        sample = index * config.samples_per_prompt
        row: dict[str, Any] = {"prompt": rows[index]["prompt"]}
        for model, label in (("sft", "before"), ("policy", "after")):
            sheet = sheets[model]
            row[label] = sheet.answers.texts[sample]
            measured = {"score": SCORE, "gold": "gold"}
            shown = {f"{short}_{label}": name for short, name in measured.items() if name in sheet.sampled}
            row |= finite({column: sheet.sampled[name][sample] for column, name in shown.items()})
        table.append(row)
    return table


def answer_rows(
    rows: Sequence[Row], sheets: Mapping[str, Sheet], kl: Sequence[Sequence[float]]
) -> list[dict[str, Any]]:
    """Every sampled answer with its group and all that was measured on it, KL in nats: what the means are made of."""
    table = []
    for model, sheet in sheets.items():
        columns = {**sheet.sampled, **({KL: [sum(tokens) for tokens in kl]} if model == "policy" else {})}
        for index, (row, text) in enumerate(zip(rows, sheet.answers.texts, strict=True)):
            measured = {name: values[index] for name, values in columns.items()}
            asked = {"prompt": row["prompt"], "response": text, "group": measures.group_of(row)}
            table.append({"model": model, **asked, **finite(measured)})
    return table


def _folders() -> dict[str, Path]:
    folders = {"sft": SFT_DIR, "policy": POLICY_DIR}
    if CHAMPION_DIR.is_dir() and not NO_CHAMPION.exists():
        folders["champion"] = CHAMPION_DIR
    return folders


def _answer_all(
    config: EvaluateConfig, rows: Sequence[Row], speaker: Speaker, reward: RewardModelSource, gold: Gold | None
) -> Sheet:
    repeated = _repeated(rows, config)
    prompts = [row["prompt"] for row in repeated]
    # The same random numbers for every model: what differs between answers is the model.
    seeds = [stream_seed(config.seed, "evaluate", row) for row in range(len(repeated))]
    params = SamplingParams(max_new_tokens=config.max_new_tokens, temperature=config.temperature)
    answers = speaker.answer(prompts, params, seeds)
    sampled = _check(gold, repeated, answers)
    sampled[SCORE] = reward(prompts, answers.texts)
    sampled[LENGTH] = [float(len(ids)) for ids in answers.response_ids]
    sampled[ENDED] = [float(finished) for finished in answers.finished]
    return Sheet(answers, sampled, _greedy(config, rows, speaker, gold) if gold else {})


def _greedy(config: EvaluateConfig, rows: Sequence[Row], speaker: Speaker, gold: Gold) -> dict[str, list[float]]:
    """Equal prompts have one likeliest answer, so each is asked once."""
    distinct = {row["prompt"]: row for row in rows}
    params = SamplingParams(max_new_tokens=config.max_new_tokens, temperature=0.0)
    answers = speaker.answer(list(distinct), params, [0] * len(distinct))
    position = {prompt: index for index, prompt in enumerate(distinct)}
    checked = _check(gold, list(distinct.values()), answers)
    return {name: [values[position[row["prompt"]]] for row in rows] for name, values in checked.items()}


def _check(gold: Gold | None, rows: Sequence[Row], answers: Answers) -> dict[str, list[float]]:
    if gold is None:
        return {}
    results = [gold(*each) for each in zip(rows, answers.texts, answers.finished, strict=True)]
    return _columns(results)


def _columns(results: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Measure → its values, for what a checker said of several answers."""
    for result in results:
        if result.keys() != results[0].keys():
            first, other = (", ".join(sorted(each)) or "nothing" for each in (results[0], result))
            raise DataError(
                f"evaluate.gold: measured {first} for one answer, and {other} for another. Return the same keys always."
            )
    return {name: [result[name] for result in results] for name in results[0]}


def _gains(ours: Sheet, theirs: Sheet, other: str, groups: measures.GroupBootstrap) -> dict[str, float]:
    """Gains of paired answers in score and in all that the checker measures, in `win`: 1 better, -1 worse; win rate.

    What is not a number on one side makes all of its measure NaN, and is no tie.
    """
    gain = "gain" if other == "sft" else f"gain_over_{other}"
    pairs = {name: (ours.sampled[name], theirs.sampled[name]) for name in ours.sampled if name not in (LENGTH, ENDED)}
    differences = {name: [a - b for a, b in zip(*pair, strict=True)] for name, pair in pairs.items()}
    judged = differences["gold" if "gold" in differences else SCORE]
    differences["win"] = numpy.sign(judged).tolist()
    gains: dict[str, float] = {}
    for name, values in differences.items():
        gains.update(_with_interval(f"{name}/{gain}", values, groups))
    # A tie is half a win, so the rate is that of the differences 1, 0 and -1 on a scale from 0 to 1.
    halves = [(1 + difference) / 2 for difference in differences["win"]]
    gains.update(_with_interval(f"win/rate_over_{other}", halves, groups))
    return gains


def _non_finite(sheet: Sheet, kl: Sequence[Sequence[float]]) -> int:
    """Answers whose score, or KL where it is known, is not a number."""
    nats = [sum(tokens) for tokens in kl] or [0.0] * len(sheet.answers.texts)
    measured = zip(sheet.sampled[SCORE], nats, strict=True)
    return sum(not math.isfinite(score + total) for score, total in measured)


def _with_interval(name: str, values: Sequence[float], groups: measures.GroupBootstrap) -> dict[str, float]:
    low, high = groups.interval(values)
    return {name: measures.mean(values), f"{name}_low": low, f"{name}_high": high}


def _repeated(rows: Sequence[Row], config: EvaluateConfig) -> list[Row]:
    return [row for row in rows for _ in range(config.samples_per_prompt)]


def _figure_data(
    policy_trace: Sequence[Row],
    checks: Mapping[int, Mapping[str, float]],
    metrics: Mapping[str, float],
    published: float | None,
) -> figures.FigureData:
    parameters = load_parameters()
    return figures.FigureData(
        policy=policy_trace,
        checker=[{"step": step, **values} for step, values in checks.items()],
        results=metrics,
        published_step=None if published is None else int(published),
        kl_target=_kl_target(parameters.of_stage("policy")),
        kl_budget=parameters.gate.max_kl_sequence,
    )


def _kl_target(config: StageConfig) -> float | None:
    """What training steers for in nats per response; None where it steers for nothing, or in another unit."""
    if isinstance(config, PPOConfig) and config.kl_target_unit == "sequence" and config.kl_penalty_coef > 0:
        return config.kl_target
    return None


if __name__ == "__main__":
    main(evaluate, EvaluateConfig)
