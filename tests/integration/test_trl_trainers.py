"""TRL's trainers behind our settings: they learn, publish what our loaders read, and refuse what they cannot do."""

import importlib
import math
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from huggingface_hub.utils import _telemetry
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlcore.configs import LoraConfig
from rlcore.errors import CheckpointError, TrainingDiverged
from rlcore.formatting import ChatFormat
from rlcore.grpo import GRPOTrainer
from rlcore.models import load_tokenizer
from rlcore.reward import ClassifierSource
from rlcore.trl_trainers import dpo, grpo, orpo, reward, sft
from tests.support import trl as small
from tests.support.checkout import ROOT
from tests.support.dpo import COLUMNS, SWAPPED
from tests.support.hotel import HotelEnv, hotel_tokenizer
from tests.support.ppo import share_of_e

ON_PAIRS = {
    "sft": (sft, small.sft_config, small.DEMONSTRATIONS),
    "reward": (reward, small.reward_config, small.PAIRS),
    "dpo": (dpo, small.dpo_config, small.PAIRS),
    "orpo": (orpo, small.orpo_config, small.PAIRS),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.start_folder(tmp_path_factory.mktemp("start"))


@pytest.mark.parametrize("name", ON_PAIRS)
def test_the_loss_falls_below_that_of_the_first_step_and_does_not_with_learning_rate_near_zero(
    name: str, start: Path, tmp_path: Path
):
    module, config, rows = ON_PAIRS[name]
    losses: list[float] = []

    def keep(step: int, metrics: dict[str, float]) -> None:
        losses.extend(value for key, value in metrics.items() if key.endswith("/loss"))

    module.train(config(start), small.split(rows, 16), tmp_path / "model", on_metrics=keep)
    learned, steps = losses[0] - sum(losses[-2:]) / 2, len(losses)
    losses.clear()
    module.train(config(start, learning_rate=1e-12), small.split(rows, 16), tmp_path / "model", on_metrics=keep)
    assert len(losses) == steps == 8
    # what differs between batches is what an idle run shows
    assert learned > 3 * (max(losses) - min(losses))


def test_grpo_raises_the_score_and_does_not_with_learning_rate_near_zero(start: Path, tmp_path: Path):
    data = small.split(small.grpo_prompts(), 16)

    def gain(learning_rate: float) -> tuple[float, float]:
        scores: list[float] = []
        config = small.grpo_config(start, learning_rate=learning_rate, num_iterations=16, batch_size=32)
        grpo.train(
            config,
            data,
            tmp_path / "model",
            reward=share_of_e,
            on_metrics=lambda step, metrics: scores.append(metrics.get("reward/score_mean", math.nan)),
        )
        first, last = torch.tensor(scores[1:6]), torch.tensor(scores[-5:])
        return (last.mean() - first.mean()).item(), 3 * ((first.var() + last.var()) / 5).sqrt().item()

    learned, bound = gain(5e-3)
    assert learned > bound
    idle, bound = gain(1e-12)
    assert idle < bound


def test_grpo_learns_in_an_environment_of_two_turns_with_tools(tmp_path: Path):
    start = small.start_folder(tmp_path / "start", tokenizer=hotel_tokenizer())
    scores: list[float] = []
    config = small.grpo_config(
        start, max_turns=2, max_new_tokens=10, learning_rate=1e-2, num_iterations=20, batch_size=48, mini_batch_size=24,
        num_generations=8, kl_penalty_coef=0.0, eval_every=20,
    )  # fmt: skip
    environment = HotelEnv(cases=6)
    grpo.train(
        config,
        None,
        tmp_path / "model",
        environment=environment,
        on_metrics=lambda step, metrics: scores.append(metrics.get("reward/score_mean", math.nan)),
    )
    # asking the desk is worth 0.5, and a random policy does it once in fifty times
    assert sum(scores[-5:]) / 5 - sum(scores[1:6]) / 5 > 0.3
    assert any(message["role"] == "tool" for completion, _ in environment.scored for message in completion)
    assert {case for _, case in environment.scored} == set(range(10, 16))


def test_a_reward_model_is_a_classifier_that_scores_as_a_reward_source(start: Path, tmp_path: Path):
    result = reward.train(small.reward_config(start), small.split(small.PAIRS, 16, 4), tmp_path / "model")
    source = ClassifierSource(tmp_path / "model")
    prompts = COLUMNS["prompt"][16:]
    chosen, rejected = (source(prompts, COLUMNS[side][16:]) for side in ("chosen", "rejected"))
    margins = torch.tensor(chosen) - torch.tensor(rejected)
    assert (margins > 0).float().mean().item() == result.best_metrics["validation/accuracy"] == 1.0
    assert margins.mean().item() == pytest.approx(result.best_metrics["validation/margin_mean"], abs=1e-5)


def test_adapters_of_a_reward_model_and_its_head_are_merged(start: Path, tmp_path: Path):
    config = small.reward_config(start, use_lora=True, lora_dropout=0.0)
    trained: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        save = reward.save_causal_lm
        patch.setattr(reward, "save_causal_lm", lambda model, *rest: (trained.append(model), save(model, *rest)))
        reward.train(config, small.split(small.PAIRS, 16), tmp_path / "model")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    ids = torch.tensor([ChatFormat(load_tokenizer(start)).encode_prompt(COLUMNS["prompt"][0])])
    before = AutoModelForSequenceClassification.from_pretrained(start, num_labels=1)
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, trained[0].eval()(ids).logits)
    assert not torch.equal(plain.model.layers[0].mlp.up_proj.weight, before.model.layers[0].mlp.up_proj.weight)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)], ids=["all weights", "adapters"])
def test_the_best_evaluated_step_is_published_as_an_ordinary_model(
    lora: LoraConfig | None, start: Path, tmp_path: Path
):
    # validation pairs that say the opposite: the loss on them is least at the first evaluation
    validation = datasets.Dataset.from_dict(SWAPPED).select(range(16, 20))
    data = datasets.DatasetDict(train=small.PAIRS.select(range(16)), validation=validation)
    evaluations: dict[int, float] = {}

    def keep(step: int, metrics: dict[str, float]) -> None:
        if "validation/loss" in metrics:
            evaluations[step] = metrics["validation/loss"]

    result = dpo.train(
        small.dpo_config(start, lora=lora),
        data,
        tmp_path / "model",
        resume_dir=tmp_path / "steps",
        on_metrics=keep,
    )
    assert list(evaluations) == [3, 6, 8]
    assert result.best_step == min(evaluations, key=evaluations.__getitem__) == 3
    assert result.best_metrics["validation/loss"] == evaluations[3]
    assert result.final_metrics["validation/loss"] == evaluations[8]
    kept = tmp_path / "steps" / "checkpoint-3"
    best = AutoModelForCausalLM.from_pretrained(start if lora else kept)
    if lora:
        best = PeftModel.from_pretrained(best, kept).merge_and_unload()
    published = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for name, weight in best.state_dict().items():
        torch.testing.assert_close(published.state_dict()[name], weight, msg=name)
    prompt = load_tokenizer(tmp_path / "model")("What", return_tensors="pt")["input_ids"]
    assert published.generate(prompt, max_new_tokens=2, min_new_tokens=2).shape[1] == prompt.shape[1] + 2


def test_answers_to_validation_prompts_are_handed_over_at_each_evaluation(start: Path, tmp_path: Path):
    samples: dict[int, list[dict[str, Any]]] = {}
    dpo.train(
        small.dpo_config(start, eval_prompts=3),
        small.split(small.PAIRS, 16, 4),
        tmp_path / "model",
        on_samples=samples.__setitem__,
    )
    assert list(samples) == [3, 6, 8]
    assert [row["prompt"] for row in samples[3]] == COLUMNS["prompt"][16:19]


def test_grpo_hands_over_the_responses_of_an_evaluation_with_their_rows(start: Path, tmp_path: Path):
    samples: dict[int, list[dict[str, Any]]] = {}
    rows = small.grpo_prompts().add_column("answer", [str(row) for row in range(16)])
    seen: list[Any] = []

    def count(prompts: list[str], responses: list[str], metadata: list[dict[str, Any]]) -> list[float]:
        seen.extend(metadata)
        return [float(len(response)) for response in responses]

    result = grpo.train(
        small.grpo_config(start, missing_eos_score=-7.0),
        small.split(rows, 12, 4),
        tmp_path / "model",
        reward=count,
        on_samples=samples.__setitem__,
    )
    assert list(samples) == [2, 4]
    assert sorted(row["answer"] for row in samples[2]) == ["12", "13", "14", "15"]
    assert {*seen[0]} == {"answer"}
    assert all(row["score"] == (len(row["response"]) if row["finished"] else -7.0) for row in samples[4])
    mean = sum(row["score"] for row in samples[result.best_step]) / 4
    assert result.best_metrics["validation/score_mean"] == pytest.approx(mean)
    kl = result.best_metrics["validation/ref_sequence_mean"]
    assert result.best_metrics["validation/objective"] == pytest.approx(mean - 0.05 * kl)
    assert kl > 0


def test_an_idle_grpo_run_answers_validation_prompts_as_our_own_trainer_does(start: Path, tmp_path: Path):
    seen: list[list[str]] = []
    data = small.split(small.grpo_prompts(), 12, 4)
    config = small.grpo_config(start, learning_rate=1e-12, num_iterations=2, eval_every=1)

    def keep(step: int, rows: list[dict[str, Any]]) -> None:
        seen.append([row["response"] for row in sorted(rows, key=lambda row: row["prompt"])])

    result = grpo.train(config, data, tmp_path / "model", reward=share_of_e, on_samples=keep)
    own = GRPOTrainer(config, reward_fn=share_of_e, on_samples=keep)
    score = own.evaluate(data["validation"])["validation/score_mean"]
    own.close()
    assert seen[0] == seen[1] == seen[2]
    assert result.final_metrics["validation/score_mean"] == pytest.approx(score, abs=1e-6)


def test_zero_steps_publish_the_model_as_it_is(start: Path, tmp_path: Path):
    result = dpo.train(small.dpo_config(start, num_epochs=0), small.split(small.PAIRS, 4), tmp_path / "model")
    assert (result.best_step, result.final_metrics) == (0, {})
    assert all(
        torch.equal(weight, small.weights_of(tmp_path / "model")[name])
        for name, weight in small.weights_of(start).items()
    )


def test_a_gradient_that_is_no_number_stops_the_run_and_publishes_nothing(start: Path, tmp_path: Path):
    with pytest.raises(TrainingDiverged, match="Optimiser step 2: the gradient is not finite"):
        dpo.train(small.dpo_config(start, learning_rate=1e30), small.split(small.PAIRS, 16), tmp_path / "model")
    # the last step has no next one to notice
    with pytest.raises(CheckpointError, match="The trained model/.* holds NaN or infinity"):
        dpo.train(
            small.dpo_config(start, learning_rate=1e39, num_epochs=1), small.split(small.PAIRS, 4), tmp_path / "m"
        )
    assert list(tmp_path.iterdir()) == []


def test_on_a_cpu_nothing_is_rounded_recomputed_reported_or_sent(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sent: list[object] = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(_telemetry.constants, "is_offline_mode", lambda: False)
    monkeypatch.setattr(_telemetry.constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(_telemetry, "_start_telemetry_thread", lambda: sent.append("thread"))
    trainer = small.made_trainer(dpo, small.dpo_config(start, device="cpu"), small.split(small.PAIRS, 4), tmp_path)
    arguments = trainer.args
    assert sent == []
    assert (arguments.bf16, arguments.fp16, arguments.activation_checkpointing) == (False, False, False)
    assert (arguments.report_to, arguments.use_cpu, arguments.push_to_hub) == ([], True, False)


def test_orpo_is_where_the_pinned_trl_has_it():
    # it is experimental there and may go in any release: then our own loss has to take over
    experimental = importlib.import_module("trl.experimental.orpo")
    assert {"ORPOConfig", "ORPOTrainer"} <= set(experimental.__all__)
    assert 'trl==1.16.0"' in (ROOT / "pyproject.toml").read_text()
