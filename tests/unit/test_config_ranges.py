"""Every number among the settings of a trainer has a range, and what lies outside of it is refused."""

import math

import pytest

from rlcore.configs import DPOConfig, GRPOConfig, PPOConfig, RewardModelConfig
from rlcore.errors import ConfigError

CONFIGS = (PPOConfig, GRPOConfig, DPOConfig, RewardModelConfig)

# The first values below and above what a setting may be; one of the two where the other side is open.
COUNTS, RATES, COEFFICIENTS, SHARES = [0], [0.0, -1e-5], [-1e-5], [-0.01, 1.01]
FORBIDDEN = {
    **dict.fromkeys(
        ["batch_size", "mini_batch_size", "gradient_accumulation_steps", "ppo_epochs", "grpo_epochs", "max_new_tokens"]
        + ["max_prompt_length", "save_every", "eval_every", "max_non_finite_steps", "max_turns", "lora_rank"]
        + ["num_labels", "reference_max_new_tokens", "save_steps", "logging_steps"],
        COUNTS,
    ),
    "eval_prompts": [-1],
    **dict.fromkeys(["num_iterations", "num_epochs", "warmup_steps", "top_k", "reference_samples"], [-1]),
    "value_warmup_iterations": [-1],
    "num_generations": [1],
    "max_length": [1],
    **dict.fromkeys(["learning_rate", "value_learning_rate", "adam_eps", "max_grad_norm", "max_update_kl"], RATES),
    **dict.fromkeys(["value_clip", "kl_target", "kl_horizon", "temperature", "lora_alpha", "beta"], RATES),
    **dict.fromkeys(["kl_penalty_coef", "entropy_coef", "value_coef", "weight_decay"], COEFFICIENTS),
    "center_rewards_coef": COEFFICIENTS,
    **dict.fromkeys(["gamma", "lam", "min_learning_rate_ratio", "warmup_ratio"], SHARES),
    "label_smoothing": [-0.01, 0.51],
    **dict.fromkeys(["dropout_prob", "lora_dropout"], [-0.01, 1.0]),
    "clip_ratio": [0.0, 1.0],
    "top_p": [0.0, 1.01],
    "seed": [-1, 2**32],
}
# Any finite number is a score.
UNBOUNDED = {"missing_eos_score"}


def numbers_of(config: type) -> list[str]:
    def is_number(kind: object) -> bool:
        return any(kind == number or kind == (number | None) for number in (int, float))

    return [name for name, field in config.model_fields.items() if is_number(field.annotation)]


CASES = [(config, name) for config in CONFIGS for name in numbers_of(config)]


@pytest.mark.parametrize(("config", "name"), CASES, ids=lambda part: getattr(part, "__name__", part))
def test_numbers_out_of_range_are_refused(config, name):
    assert name in FORBIDDEN or name in UNBOUNDED, "say what it may not be"
    for value in [*FORBIDDEN.get(name, []), math.nan, math.inf]:
        with pytest.raises(ConfigError, match=name):
            config(model_name="none", **{name: value})
