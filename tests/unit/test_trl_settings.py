"""What becomes of each setting in front of a TRL trainer: it reaches the trainer, or is refused by name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import BertConfig, BertForMaskedLM

from rlcore.configs import DPOConfig, GRPOConfig, ORPOConfig, RewardModelConfig, SFTConfig, StageConfig
from rlcore.errors import ConfigError, DataError
from rlcore.trl_trainers import dpo, grpo, orpo, reward, sft
from tests.support import trl as small
from tests.support.checkout import ROOT
from tests.support.hotel import HotelEnv
from tests.support.ppo import share_of_e
from tests.support.tiny import tiny_tokenizer

CONFIGS = {"sft": SFTConfig, "reward": RewardModelConfig, "dpo": DPOConfig, "orpo": ORPOConfig, "grpo": GRPOConfig}
SOURCES = {
    "sft": ["sft"],
    "reward": ["reward", "../reward/body"],
    "dpo": ["dpo", "token_pairs", "../dpo/dataset", "../dpo/answers"],
    "orpo": ["orpo", "token_pairs", "../dpo/dataset", "../dpo/answers"],
    "grpo": ["grpo", "../grpo/trainer", "../rollout/trainer", "../rollout/policy"],
}
"""Files that read the settings of a stage, besides those that all share."""
MODULES = {"sft": sft, "reward": reward, "dpo": dpo, "orpo": orpo, "grpo": grpo}
REFUSED = {
    "reward": {"num_labels": 2, "temperature": 2.0, "reference_samples": 4, "reference_max_new_tokens": 8},
    "dpo": {"reference_free": True, "max_non_finite_steps": 1},
    "grpo": {"advantage_estimator": "leave_one_out", "max_update_kl": 0.1, "max_non_finite_steps": 1},
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.start_folder(tmp_path_factory.mktemp("start"))


@pytest.mark.parametrize("stage", CONFIGS)
def test_a_setting_is_read_or_refused(stage: str):
    folder = ROOT / "rlcore" / "trl_trainers"
    files = [folder / f"{name}.py" for name in ["arguments", *SOURCES[stage]]]
    read = {name for path in files for name in re.findall(r"\bconfig\.(\w+)", path.read_text(encoding="utf-8"))}
    refused = set(getattr(MODULES[stage], "UNSUPPORTED", ()))
    assert set(CONFIGS[stage].model_fields) - read == refused - read
    assert refused == set(REFUSED.get(stage, {}))


@pytest.mark.parametrize(("stage", "name"), [(stage, name) for stage, names in REFUSED.items() for name in names])
def test_a_setting_without_counterpart_is_refused_by_name_and_nothing_is_written(
    stage: str, name: str, start: Path, tmp_path: Path
):
    config = getattr(small, f"{stage}_config")(start, **{name: REFUSED[stage][name]})
    rows = small.grpo_prompts() if stage == "grpo" else small.PAIRS
    with pytest.raises(ConfigError, match=rf"^{name}=.*TRL's \w+Trainer has no such setting.*'own'"):
        MODULES[stage].train(config, small.split(rows, 16), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_dropout_in_front_of_the_head_may_be_the_none_that_there_is(start: Path, tmp_path: Path):
    data = small.split(small.PAIRS, 4)
    small.made_trainer(reward, small.reward_config(start, dropout_prob=0.0), data, tmp_path)
    with pytest.raises(ConfigError, match=r"dropout_prob=0\.5"):
        reward.train(small.reward_config(start, dropout_prob=0.5), data, tmp_path / "model")


def arguments_of(
    module: Any, config: StageConfig, tmp_path: Path, rows: datasets.Dataset = small.PAIRS, **arguments: Any
) -> Any:
    return small.made_trainer(module, config, small.split(rows, 12, 4), tmp_path, **arguments).args


COMMON = {
    "seed": 5,
    "learning_rate": 0.003,
    "weight_decay": 0.02,
    "max_grad_norm": 0.3,
    "gradient_accumulation_steps": 2,
    "batch_size": 6,
    "logging_steps": 7,
}


def assert_common(arguments: Any) -> None:
    for name in ("seed", "learning_rate", "weight_decay", "max_grad_norm", "gradient_accumulation_steps"):
        assert getattr(arguments, name) == COMMON[name]
    assert arguments.per_device_train_batch_size == 6


def test_sft_arguments(start: Path, tmp_path: Path):
    config = small.sft_config(
        start,
        **COMMON,
        max_steps=9,
        warmup_steps=3,
        min_learning_rate_ratio=0.2,
        adam_beta1=0.8,
        adam_beta2=0.7,
        max_length=50,
    )
    found = arguments_of(sft, config, tmp_path, small.DEMONSTRATIONS, resume_dir=tmp_path / "steps")
    assert_common(found)
    assert (found.max_steps, found.logging_steps, found.save_steps) == (9, 7, 4)
    assert (found.warmup_steps, found.lr_scheduler_kwargs) == (3, {"min_lr_rate": 0.2})
    assert (found.adam_beta1, found.adam_beta2, found.max_length) == (0.8, 0.7, 50)


@pytest.mark.parametrize(("module", "config"), [(dpo, small.dpo_config), (orpo, small.orpo_config)])
def test_arguments_on_pairs(module: Any, config: Callable[..., StageConfig], start: Path, tmp_path: Path):
    # 12 pairs, 6 * 2 a step: one step an epoch, and 0.4 of 6 steps is a warm-up of 3, rounded up
    settings = {"warmup_ratio": 0.4, "min_learning_rate_ratio": 0.2, "beta": 0.6, "num_epochs": 6, "save_every": 5}
    found = arguments_of(module, config(start, **COMMON, **settings), tmp_path, resume_dir=tmp_path / "steps")
    assert_common(found)
    assert (found.max_steps, found.logging_steps, found.save_steps, found.eval_steps) == (6, 7, 5, 3)
    assert (found.warmup_steps, found.lr_scheduler_kwargs) == (3, {"min_lr_rate": 0.2})
    assert (found.beta, found.disable_dropout, found.save_only_model) == (0.6, True, False)


def test_reward_arguments(start: Path, tmp_path: Path):
    config = small.reward_config(
        start,
        **COMMON,
        num_epochs=6,
        warmup_steps=3,
        center_rewards_coef=0.4,
        save_steps=5,
        use_lora=True,
        lora_rank=3,
        lora_alpha=5,
        lora_dropout=0.25,
    )
    trainer = small.made_trainer(reward, config, small.split(small.PAIRS, 12, 4), tmp_path, resume_dir=tmp_path)
    found, adapters = trainer.args, trainer.model.peft_config["default"]
    assert_common(found)
    assert (found.max_steps, found.logging_steps, found.save_steps, found.eval_steps) == (6, 7, 5, 1)
    assert (found.warmup_steps, found.center_rewards_coefficient) == (3, 0.4)
    assert (adapters.r, adapters.lora_alpha, adapters.lora_dropout) == (3, 5, 0.25)
    # it stays switched on: the dropout in front of the adapters is a setting
    assert found.disable_dropout is False


def test_grpo_arguments(start: Path, tmp_path: Path):
    common = {name: value for name, value in COMMON.items() if name != "logging_steps"}
    config = small.grpo_config(
        start,
        **common | {"batch_size": 36, "mini_batch_size": 6},
        num_generations=3,
        grpo_epochs=2,
        num_iterations=5,
        save_every=4,
        eval_every=3,
        max_new_tokens=9,
        temperature=0.7,
        top_p=0.8,
        top_k=11,
        kl_penalty_coef=0.3,
        clip_ratio=0.15,
        loss_normalization="constant",
        advantage_scaling="batch",
        mask_truncated=True,
        adam_eps=1e-6,
    )
    found = arguments_of(grpo, config, tmp_path, small.grpo_prompts(), reward=share_of_e, resume_dir=tmp_path / "steps")
    assert_common(found)
    # 36 responses in steps of 6 * 2, twice: 6 steps an iteration
    assert (found.max_steps, found.logging_steps, found.save_steps, found.eval_steps) == (30, 6, 24, 18)
    assert (found.num_generations, found.num_iterations, found.steps_per_generation) == (3, 2, 6)
    assert (found.max_completion_length, found.temperature, found.top_p, found.top_k) == (9, 0.7, 0.8, 11)
    assert (found.beta, found.epsilon, found.adam_epsilon) == (0.3, 0.15, 1e-6)
    assert (found.loss_type, found.scale_rewards, found.mask_truncated_completions) == ("dr_grpo", "batch", True)
    # of the 4 validation prompts; 36 responses would fit
    assert found.per_device_eval_batch_size == 4
    assert (found.lr_scheduler_type, found.use_bias_correction_kl, found.disable_dropout) == ("constant", False, True)


def test_without_a_folder_to_resume_from_only_weights_are_kept(start: Path, tmp_path: Path):
    found = arguments_of(dpo, small.dpo_config(start), tmp_path)
    assert (found.save_only_model, found.save_steps) == (True, found.max_steps)
    trainer = small.made_trainer(dpo, small.dpo_config(start), small.split(small.PAIRS, 4), tmp_path)
    assert trainer.args.save_strategy == "no"


@pytest.mark.parametrize("module", [reward, dpo, orpo])
def test_a_reward_source_beside_pairs_is_refused(module: Any, start: Path, tmp_path: Path):
    stage = next(stage for stage, each in MODULES.items() if each is module)
    config = getattr(small, f"{stage}_config")(start)
    with pytest.raises(ConfigError, match="Found a reward source, expected none"):
        module.train(config, small.split(small.PAIRS, 4), tmp_path / "model", reward=share_of_e)
    with pytest.raises(DataError, match="Found the splits .*, expected train"):
        module.train(config, datasets.DatasetDict(test=small.PAIRS), tmp_path / "model")
    with pytest.raises(DataError, match=r"Split train: Found no column rejected"):
        module.train(config, small.split(small.PAIRS.remove_columns("rejected"), 4), tmp_path / "model")


@pytest.mark.parametrize("module", [orpo, grpo])
def test_a_reference_is_refused_where_the_trainer_takes_none(module: Any, start: Path, tmp_path: Path):
    config = small.orpo_config(start) if module is orpo else small.grpo_config(start)
    with pytest.raises(ConfigError, match="Found a reference"):
        module.train(config, small.split(small.PAIRS, 16), tmp_path / "model", reference=start)


def test_grpo_needs_whole_steps_enough_prompts_and_one_judge(start: Path, tmp_path: Path):
    data = small.split(small.grpo_prompts(), 3)
    with pytest.raises(ConfigError, match=r"batch_size=16: .* = 6 responses\. Use a multiple of 6"):
        grpo.train(small.grpo_config(start, mini_batch_size=6), data, tmp_path / "model")
    with pytest.raises(DataError, match="Found 3 prompts, expected at least the 4 of an iteration"):
        grpo.train(small.grpo_config(start), data, tmp_path / "model")
    with pytest.raises(ConfigError, match="and an environment, expected one"):
        grpo.train(small.grpo_config(start), data, tmp_path / "model", reward=share_of_e, environment=HotelEnv())


def test_a_reward_model_pools_as_its_class_does(start: Path, tmp_path: Path):
    encoder = BertForMaskedLM(
        BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    encoder.save_pretrained(tmp_path / "encoder")
    tiny_tokenizer().save_pretrained(tmp_path / "encoder")
    data = small.split(small.PAIRS, 4)
    for folder, right, wrong in ((start, "last", "mean"), (tmp_path / "encoder", "cls", "last")):
        with pytest.raises(ConfigError, match=f"pooling_strategy='{wrong}': .* pools by '{right}'"):
            reward.train(small.reward_config(folder, pooling_strategy=wrong), data, tmp_path / "model")
        small.made_trainer(reward, small.reward_config(folder, pooling_strategy=right), data, tmp_path)


def test_a_second_gpu_by_name_is_refused(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ConfigError, match="device='cuda:1': TRL takes the CPU or the first GPU"):
        small.made_trainer(dpo, small.dpo_config(start, device="cuda:1"), small.split(small.PAIRS, 4), tmp_path)


def test_pairs_that_the_model_cannot_read_are_refused(start: Path, tmp_path: Path):
    long = datasets.Dataset.from_dict({"prompt": ["What? " * 100], "chosen": ["yes"], "rejected": ["no"]})
    config = small.dpo_config(start, max_length=400, max_prompt_length=300)
    with pytest.raises(ConfigError, match=r"Split train: found a pair of \d+ tokens, expected at most 128"):
        dpo.train(config, small.split(long, 1), tmp_path / "model")
