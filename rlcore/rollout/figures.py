"""What is reported about a rollout: numbers for curves, rows to be read."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from rlcore.functional.kl import k3
from rlcore.functional.masking import masked_mean
from rlcore.rollout.collection import Rollout

VALIDATION = ("reward/score_mean", "kl/ref_sequence_mean", "response/length_mean", "response/eos_fraction")
"""Figures of a rollout that an evaluation reports, there as `validation/<second part>`."""


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Score, KL and length figures of a rollout, under the names of the metric page.

    A response without a score (NaN) counts in no figure of scores.
    """
    kl = rollout.kl
    scores = rollout.scores[~rollout.scores.isnan()]
    k3_per_token = k3(rollout.old_logprobs, rollout.ref_logprobs)
    parts = {f"reward/{name}_mean": part.nanmean().item() for name, part in rollout.reward_parts.items()}
    return {
        **parts,
        "reward/score_mean": scores.mean().item(),
        "reward/score_std": scores.std(unbiased=False).item() if len(scores) else float("nan"),
        "kl/ref_token_mean": masked_mean(kl, rollout.response_mask).item(),
        "kl/ref_k3_token_mean": masked_mean(k3_per_token, rollout.response_mask).item(),
        "kl/ref_sequence_mean": kl.sum(1).mean().item(),
        "response/length_mean": rollout.sequences.response_lengths.to(torch.float32).mean().item(),
        "response/eos_fraction": rollout.terminated.to(torch.float32).mean().item(),
        "response/distinct_count": float(len(set(rollout.responses))),
        "throughput/tokens_per_s": rollout.token_count / max(rollout.seconds["sampling"], 1e-9),
        **{f"time/{part}_s": seconds for part, seconds in rollout.seconds.items()},
    }


def validation_metrics(rollout: Rollout, kl_coef: float) -> dict[str, float]:
    """Figures of an evaluation, and its objective: the mean score less kl_coef times the KL per response."""
    figures = rollout_metrics(rollout)
    metrics = {f"validation/{name.split('/')[1]}": figures[name] for name in VALIDATION}
    metrics["validation/objective"] = figures["reward/score_mean"] - kl_coef * figures["kl/ref_sequence_mean"]
    return metrics


def repeatable(metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite ones of some metrics, without those of the clock: what a checkpoint can hold, and equal runs share."""
    clock = ("time/", "throughput/")
    return {name: value for name, value in metrics.items() if math.isfinite(value) and not name.startswith(clock)}


def sample_rows(rollout: Rollout) -> list[dict[str, Any]]:
    """The responses of a rollout, to be read: prompt, response, whether it ended by itself, score, KL in nats."""
    return [
        {"prompt": prompt.text, "response": response, "finished": finished, "score": score, "kl": kl, **prompt.metadata}
        for prompt, response, finished, score, kl in zip(
            rollout.prompts,
            rollout.responses,
            rollout.terminated.tolist(),
            rollout.scores.tolist(),
            rollout.kl.sum(1).tolist(),
            strict=True,
        )
    ]
