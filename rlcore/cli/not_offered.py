"""Flags of the documents' command line that nothing here answers to: refused by name, with the reason.

The value that says what happens anyway is let through.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NotOffered:
    """Why a flag is refused, and the one value of it that is let through."""

    only: Any
    reason: str


_BY_REASON: dict[str, dict[str, Any]] = {
    "the command trains on this machine and does nothing else": {
        "deploy": False,
        "inference": False,
        "interactive": False,
        "inference_prompts": None,
        "inference_max_tokens": 256,
        "inference_temperature": 1.0,
        "inference_top_p": 1.0,
        "inference_top_k": 50,
        "inference_output": None,
        "post_trial_script": None,
    },
    "prompt and response are tokenised apart, with the model's own chat template and one end token": {
        "add_eos_token": True,
        "map_eos_token": False,
        "apply_chat_template": True,
        "chat_template": None,
        "chat_format": None,
        "packing": None,
        "padding": "right",
        "token_weights": None,
        "response_only_loss": True,
    },
    "block_size limits a row and rl_max_new_tokens a response": {
        "model_max_length": None,
        "max_completion_length": None,
    },
    "rows are read as they stand; name their columns, and convert other forms before": {
        "auto_convert_dataset": False,
        "column_mapping": None,
        "runtime_mapping": None,
        "conversation_extension": 1,
        "save_processed_data": "auto",
        "image_column": None,
    },
    "the trainer has a schedule, an optimizer and a precision of its own": {
        "scheduler": None,
        "optimizer": "adamw_torch",
        "mixed_precision": None,
        "attn_implementation": None,
        "use_flash_attention_2": False,
        "disable_gradient_checkpointing": True,
        "auto_find_batch_size": True,
        "quantization": None,
        "unsloth": False,
        "merge_adapter": True,
    },
    "evaluations and checkpoints follow the trainer's steps": {
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "save_total_limit": None,
        "manual_checkpoint_control": False,
        "save_state_every_n_steps": 0,
        "load_state_from": None,
    },
    "several processes are started with `accelerate launch`": {"distributed_backend": None, "ddp_timeout": None},
    "losses, steps and metrics of your own are Python code: use rlcore.ForwardBackwardPipeline": {
        "use_forward_backward": False,
        "forward_backward_loss_fn": None,
        "forward_backward_custom_fn": None,
        "gradient_accumulation_steps": 1,
        "manual_optimizer_control": False,
        "optimizer_step_frequency": 1,
        "grad_clip_value": 1.0,
        "custom_loss": None,
        "custom_loss_weights": None,
        "custom_metrics": None,
    },
    "there is no trainer for distillation": {
        "use_distillation": False,
        "teacher_model": None,
        "teacher_prompt_template": None,
        "student_prompt_template": "{input}",
        "distill_temperature": 3.0,
        "distill_alpha": 0.7,
        "distill_max_teacher_length": 512,
    },
    "responses are sampled by this library": {
        "use_vllm": False,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3,
        "vllm_server_url": None,
        "vllm_tensor_parallel_size": 1,
        "vllm_server_gpus": 1,
        "sample_every_n_steps": 0,
        "sample_prompts": None,
        "sample_temperature": 1.0,
        "sample_top_k": 50,
        "sample_top_p": 1.0,
    },
    "there is no search over settings": {
        "use_sweep": False,
        "sweep_backend": "optuna",
        "sweep_n_trials": 10,
        "sweep_metric": "eval_loss",
        "sweep_direction": "minimize",
        "sweep_params": None,
    },
    "a model is measured by its trainer, on valid_split": {
        "use_enhanced_eval": False,
        "eval_metrics": "perplexity",
        "eval_dataset_path": None,
        "eval_batch_size": 8,
        "eval_save_predictions": False,
        "eval_benchmark": None,
    },
    "metrics stay on this machine": {"log": "none", "wandb_visualizer": False},
    "the result is a folder; upload it with `hf upload`": {
        "push_to_hub": False,
        "username": None,
        "token": None,
        "repo_id": None,
        "hub_private": True,
    },
}

NOT_OFFERED = {name: NotOffered(only, reason) for reason, flags in _BY_REASON.items() for name, only in flags.items()}
"""By field name."""
