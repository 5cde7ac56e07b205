"""Which trainer reads which setting, and why one that is set goes unread: none is accepted and ignored."""

from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.stages import STAGE_FIELDS, implementation_of

_PROJECT = {
    "trainer", "project_name", "max_samples", "implementation", "log", "save_strategy", "resume_from_checkpoint",
    "push_to_hub", "repo_id", "username", "hub_private", "token", "silence",
}  # fmt: skip
_FILE = {"data_path", "train_split", "text_column", "column_mapping"}
_VALIDATION = {"valid_split", "eval_strategy"}
_REWARDS = {
    "rl_reward_model_path", "rl_reward_fn", "rl_multi_objective", "rl_reward_weights", "rl_env_type", "rl_env_config",
}  # fmt: skip
_ENVIRONMENT = {"rl_env_module", "rl_env_class"}
_PAIRS = _PROJECT | _FILE | _VALIDATION | {"prompt_text_column", "rejected_text_column"}

PROJECT_FIELDS: dict[str, set[str]] = {
    "sft": _PROJECT | _FILE | _VALIDATION | {"prompt_text_column", "merge_adapter"},
    "reward": _PAIRS,
    "dpo": _PAIRS | {"model_ref", "merge_adapter"},
    "orpo": _PAIRS | {"merge_adapter"},
    "ppo": _PROJECT | _FILE | _VALIDATION | _REWARDS | {"model_ref", "merge_adapter", "rl_optimize_device_cache"},
    "grpo": _PROJECT | _FILE | _VALIDATION | _REWARDS | _ENVIRONMENT | {"model_ref", "merge_adapter"},
}
"""What AutoTrainProject itself reads, for each trainer."""

_REASONS = {
    ("ppo", "gradient_accumulation"): "rl_mini_batch_size responses make an optimiser step",
    ("reward", "target_modules"): "a reward model has adapters in every linear layer",
    ("reward", "merge_adapter"): "a reward model is written whole",
    **{(stage, "lora_dropout"): "policies are trained without dropout" for stage in STAGE_FIELDS if stage != "reward"},
}


def readers_of(name: str) -> list[str]:
    """The trainers that read a field."""
    return [stage for stage in STAGE_FIELDS if name in STAGE_FIELDS[stage] or name in PROJECT_FIELDS[stage]]


def unread_fields(params: LLMTrainingParams) -> dict[str, str]:
    """The fields that are set to something and that the trainer does not read, each with the reason."""
    idle = _idle_fields(params)
    changed = (
        name
        for name, field in LLMTrainingParams.model_fields.items()
        if (params.stage not in readers_of(name) or name in idle) and getattr(params, name) != field.default
    )
    return {name: _reason(params.stage, name, idle) for name in changed}


def _reason(stage: str, name: str, idle: dict[str, str]) -> str:
    if stage not in readers_of(name):
        return _REASONS.get((stage, name)) or f"it is for {', '.join(readers_of(name))}"
    return idle[name]


def _idle_fields(params: LLMTrainingParams) -> dict[str, str]:
    """Fields that another setting has switched off, and that setting."""
    idle: dict[str, str] = {}
    if not params.peft:
        names = ("lora_r", "lora_alpha", "lora_dropout", "target_modules", "merge_adapter")
        idle |= dict.fromkeys(names, "it needs peft=True")
    if params.save_strategy != "steps":
        idle["save_steps"] = "it needs save_strategy='steps'"
    if params.save_strategy == "no":
        idle["resume_from_checkpoint"] = "with save_strategy='no' there are no checkpoints"
    if params.eval_strategy == "no":
        idle["valid_split"] = "with eval_strategy='no' it is not measured"
    if not params.push_to_hub:
        idle |= dict.fromkeys(("repo_id", "username", "hub_private", "token"), "it needs push_to_hub=True")
    elif params.repo_id is not None:
        idle["username"] = "repo_id says it"
    if params.stage == "grpo":
        idle |= _idle_in_grpo(params)
    return idle


def _idle_in_grpo(params: LLMTrainingParams) -> dict[str, str]:
    idle: dict[str, str] = {}
    if params.rl_env_class is None:
        idle["rl_max_turns"] = "it needs rl_env_class"
    else:
        taken_over = (_FILE | _VALIDATION | _REWARDS) - {"rl_env_config"}
        idle |= dict.fromkeys(taken_over, "rl_env_class brings the prompts and scores the answers")
    if implementation_of(params) == "trl":
        idle["model_ref"] = "TRL's GRPO takes the model itself as its reference; set implementation='own'"
    return idle
