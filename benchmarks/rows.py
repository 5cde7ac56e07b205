"""The rows of the table, in its order: what is compared, what it must reach, what it aims at."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from benchmarks.comparison import Comparison, peak_above_imports, unit_peak
from benchmarks.pipeline_overhead import Overhead
from benchmarks.results import NOTED, Result


@dataclass(frozen=True)
class NotBuilt:
    """A row of something that the library does not have; it says so and fails nothing."""

    name: str
    title: str
    aim: str

    def measure(self, rounds: int, *, smoke: bool = False) -> Result:
        """Nothing."""
        return Result(self.name, self.title, must="–", aim=self.aim, status=NOTED, reason="not built", smoke=smoke)


class Row(Protocol):
    """Something that `python -m benchmarks` measures."""

    @property
    def name(self) -> str:
        """On the command line."""

    @property
    def title(self) -> str:
        """In the table."""

    def measure(self, rounds: int, *, smoke: bool = False) -> Result:
        """Its numbers and its verdict."""


_ROWS = {"rows": 64, "prompt_length": 16, "vocabulary": 0, "new_tokens": 64}
"""The vocabulary is that of the model's shape."""
_ROLLOUT = {**_ROWS, "batch_size": 64}
_SMALL_ROLLOUT = {"rows": 6, "prompt_length": 8, "batch_size": 6, "new_tokens": 8, "mini_batch_size": 3}
_PPO = {**_ROWS, "mini_batch_size": 16, "epochs": 4}
_GRPO = {**_ROWS, "mini_batch_size": 16, "accumulation": 4, "group_size": 8}
_LORA_PPO = {**_PPO, "rows": 8, "new_tokens": 32, "mini_batch_size": 4, "epochs": 2, "lora": True}
_PAIRS = {"rows": 256, "prompt_length": 16, "response_length": 64, "vocabulary": 0, "batch_size": 16, "max_length": 128}
_SMALL_PAIRS = {"rows": 8, "prompt_length": 4, "response_length": 8, "batch_size": 4, "max_length": 32}
_PEER_PAIRS = {**_PAIRS, "rows": 64, "response_length": 112, "batch_size": 8}
_HEAD = {"rows": 4, "length": 128, "response_length": 64, "hidden": 576, "vocabulary": 152_000}
_SMALL_HEAD = {"hidden": 64, "vocabulary": 20_000}
_TWO_MODELS = {"model": 0, "reference": 1}


def _generate(name: str, title: str, must: float, aim: str, logprobs: str, **more: Any) -> Comparison:
    return Comparison(
        name,
        f"{title} vs `generate`, {'kept logits' if logprobs == 'output_logits' else 'second pass'}",
        "own",
        "own_sampling:Rollout",
        "hf_generate:Rollout",
        must,
        aim,
        smoke=_SMALL_ROLLOUT,
        peer_only={"logprobs": logprobs},
        note="Both sides give log-probabilities.",
        **{"settings": _ROLLOUT, **more},
    )


def _dpo(epochs: int) -> Comparison:
    return Comparison(
        f"dpo-{epochs}",
        f"DPO vs TRL 1.16, {epochs} epoch{'s' if epochs > 1 else ''}",
        "own",
        "own_pairs:DPO",
        "trl_pairs:DPO",
        1.5,
        "2.0",
        models=_TWO_MODELS,
        settings={**_PAIRS, "accumulation": 1, "epochs": epochs},
        smoke=_SMALL_PAIRS,
        counted="pairs",
        note="From texts: tokenising and reference log-probabilities are in it on both sides.",
    )


def _peer_row(name: str, title: str, arms: tuple[str, str], must: float, aim: str, **more: Any) -> Comparison:
    return Comparison(f"aitraining-{name}", f"aitraining 0.0.54: {title}", "aitraining", *arms, must, aim, **more)


def _logprobs(name: str, title: str, must: float, aim: str, **more: Any) -> Comparison:
    return Comparison(
        f"logprobs-{name}",
        f"log-probs at V=152k vs a full log_softmax: {title}",
        "own",
        "own_pieces:Logprobs",
        "plain_logprobs:Logprobs",
        must,
        aim,
        shape=None,
        smoke=_SMALL_HEAD,
        **more,
    )


ROWS: tuple[Row, ...] = (
    _generate("rollout", "rollout, B=64", 1.5, "2 eager, 3 compiled", "output_logits"),
    _generate("rollout-second-pass", "rollout, B=64", 1.5, "2 eager, 3 compiled", "second_pass"),
    _generate(
        "rollout-ragged",
        "rollout, lengths a quarter of the limit",
        2.0,
        "3",
        "output_logits",
        mean_length=32,
        settings={**_ROLLOUT, "rows": 256, "new_tokens": 128},
    ),
    _generate(
        "rollout-135m",
        "rollout, 135M shape, B=16",
        1.0,
        "1.05",
        "output_logits",
        shape="135m",
        settings={**_ROLLOUT, "rows": 16, "batch_size": 16, "new_tokens": 16},
    ),
    Comparison(
        "ppo",
        "PPO vs TRL 1.12, as shipped",
        "trl-1.12",
        "own_rollouts:PPO",
        "trl_ppo:PPO",
        2.0,
        "2.7",
        settings=_PPO,
        ours_only={"accumulation": 1},
        smoke=_SMALL_ROLLOUT,
        note="Ours: critic on the policy's states, reward function, a step for each mini-batch. TRL: value and reward "
        "model, a step for each epoch.",
    ),
    Comparison(
        "ppo-equal",
        "PPO vs TRL 1.12, equal steps, own critic and reward model",
        "trl-1.12",
        "own_rollouts:PPO",
        "trl_ppo:PPO",
        1.15,
        "1.4",
        settings=_PPO,
        ours_only={"accumulation": 4, "separate": True},
        smoke={**_SMALL_ROLLOUT, "accumulation": 2},
    ),
    Comparison(
        "ppo-lora-135m",
        "LoRA PPO vs TRL 1.12, 135M shape",
        "trl-1.12",
        "own_rollouts:PPO",
        "trl_ppo:PPO",
        1.5,
        "2.5",
        shape="135m",
        settings=_LORA_PPO,
        ours_only={"accumulation": 2},
        smoke={**_SMALL_ROLLOUT, "accumulation": 2},
        note="As shipped, equal steps: TRL with a value and a reward model of full size.",
    ),
    Comparison(
        "grpo",
        "GRPO vs TRL 1.16, equal counted tokens",
        "own",
        "own_rollouts:GRPO",
        "trl_grpo:GRPO",
        1.15,
        "1.4",
        settings=_GRPO,
        smoke={**_SMALL_ROLLOUT, "accumulation": 2, "group_size": 3},
    ),
    _dpo(1),
    _dpo(3),
    Comparison(
        "reward",
        "reward training vs TRL 1.16",
        "own",
        "own_pairs:Reward",
        "trl_pairs:Reward",
        1.3,
        "1.7",
        settings={**_PAIRS, "epochs": 1},
        smoke=_SMALL_PAIRS,
        counted="pairs",
        note="From texts, one epoch.",
    ),
    _peer_row(
        "rollout",
        "rollout, 16 rows",
        ("own_sampling:Responses", "aitraining:Responses"),
        1.1,
        "2",
        settings={**_ROWS, "rows": 16},
        smoke=_SMALL_ROLLOUT,
        note="From text to text; ours gives log-probabilities too.",
    ),
    _peer_row(
        "dpo",
        "DPO",
        ("own_pairs:DPO", "aitraining:DPO"),
        2.0,
        "4",
        models=_TWO_MODELS,
        settings={**_PEER_PAIRS, "accumulation": 1, "epochs": 1},
        smoke=_SMALL_PAIRS,
        parity={"response_length": 600},
        counted="pairs",
        note="The peer's loss driven by hand, since its train() raises; it counts padding, so parity is on full rows.",
    ),
    _peer_row(
        "reward",
        "reward training",
        ("own_pairs:Reward", "aitraining:Reward"),
        1.2,
        "2",
        settings={**_PEER_PAIRS, "epochs": 1},
        smoke=_SMALL_PAIRS,
        counted="pairs",
        note="Its head is another function: parity of the loss is on its scores.",
    ),
    _peer_row(
        "gae",
        "advantages, 64 x 512",
        ("own_pieces:Advantages", "aitraining:Advantages"),
        5.0,
        "–",
        settings={"rows": 64, "steps": 512, "repeats": 20},
        peer_only={"model": 0},
        smoke={"rows": 4, "steps": 32, "repeats": 2},
    ),
    _peer_row(
        "pipeline",
        "forward, backward and step, 8 x 128",
        ("own_pieces:PipelineStep", "aitraining:PipelineStep"),
        1.2,
        "1.5",
        settings={"rows": 8, "length": 128, "vocabulary": 0, "repeats": 5},
        smoke={"rows": 2, "length": 16, "repeats": 1},
    ),
    _logprobs("time", "time", 1.6, "2", settings={**_HEAD, "frozen": False}),
    _logprobs("memory", "extra memory", 1.7, "3", settings={**_HEAD, "frozen": False}, cost=unit_peak),
    _logprobs("frozen", "extra memory, frozen head", 5.0, "8", settings={**_HEAD, "frozen": True}, cost=unit_peak),
    Comparison(
        "ppo-memory",
        "peak memory above imports vs TRL 1.12, LoRA PPO, 135M shape",
        "trl-1.12",
        "own_rollouts:PPO",
        "trl_ppo:PPO",
        2.5,
        "4",
        shape="135m",
        settings={**_LORA_PPO, "epochs": 1},
        ours_only={"accumulation": 2},
        smoke={**_SMALL_ROLLOUT, "accumulation": 2},
        cost=peak_above_imports,
    ),
    Overhead("pipeline-cached", "pipeline overhead, everything cached", 30.0, "20 s"),
    Overhead("pipeline-first", "pipeline overhead, first run", 60.0, "40 s"),
    NotBuilt("overlap", "sampling in a process beside the update, both equally long", "1.6 on an idle machine"),
)

BESIDE = ("validation",)
"""Modules of this package with figures of their own, that no row here holds."""


def beside() -> list[str]:
    """Those that are there, as commands."""
    return [f"python -m benchmarks.{name}" for name in BESIDE if find_spec(f"benchmarks.{name}")]
