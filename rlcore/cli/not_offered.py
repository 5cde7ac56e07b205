"""Flags and values of the documents' command line that nothing here answers to: refused by name, with the reason.

The value of a flag that says what happens anyway is let through.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NotOffered:
    """Why a flag is refused, and the one value of it that is let through; None, which sets nothing, is besides."""

    only: Any
    reason: str

    def lets_through(self, value: Any) -> bool:
        """Whether a value, which may come as text, is the one that says what happens anyway."""
        return value is None or value == self.only or str(value).lower() == str(self.only).lower()


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
        "chat_template": "tokenizer",
        "chat_format": None,
    },
    "a row is one example, and of an example with a prompt every response token counts 1 and no other": {
        "packing": False,
        "padding": "right",
        "token_weights": None,
        "response_only_loss": True,
    },
    "block_size limits a row and rl_max_new_tokens a response": {
        "model_max_length": None,
        "max_completion_length": None,
    },
    "rows are text, prompts and answers, or messages with role and content; convert other forms before": {
        "auto_convert_dataset": False,
        "runtime_mapping": None,
        "conversation_extension": 1,
        "save_processed_data": "none",
        "image_column": None,
    },
    "every trainer uses AdamW": {"optimizer": "adamw_torch"},
    "ppo and grpo train at a constant rate, the others warm up and follow a cosine": {"scheduler": None},
    "weights are trained in float32; on a GPU, TRL's trainers compute in bfloat16": {"mixed_precision": None},
    "the model's own attention is used": {"attn_implementation": None, "use_flash_attention_2": False},
    "activations are kept, not computed twice": {"disable_gradient_checkpointing": True},
    "a batch that does not fit on the device is halved by itself, but for TRL's trainers": {
        "auto_find_batch_size": None,
    },
    "weights of 4 or 8 bits need a GPU and bitsandbytes, and models are loaded in float32 here; to save memory, train "
    "adapters with peft": {"quantization": None},
    "the trainers use transformers and peft as they are": {"unsloth": False},
    "the two newest checkpoints and the best one are kept": {"save_total_limit": None},
    "checkpoints follow save_strategy; go on from one with resume_from_checkpoint": {
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
    },
    "the prompts of valid_split are answered whenever they are measured": {
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
    "metrics stay on this machine; keep them with log=mlflow": {
        "wandb_visualizer": False,
        "wandb_sweep": False,
        "wandb_sweep_project": None,
        "wandb_sweep_entity": None,
        "wandb_sweep_id": None,
        "wandb_run_id": None,
    },
}

NOT_OFFERED = {name: NotOffered(only, reason) for reason, flags in _BY_REASON.items() for name, only in flags.items()}
"""By field name."""

_NO_SUCH_LOSS = "TRL's loss has no counterpart here. Use grpo, dapo or dr_grpo"
_LOCAL_LOG = "metrics stay on this machine. Use mlflow, or none"

REFUSED_VALUES: dict[str, dict[str, str]] = {
    "trainer": {"distillation": "there is no trainer for distillation. Use sft on the teacher's answers"},
    "log": {"wandb": _LOCAL_LOG, "tensorboard": _LOCAL_LOG},
    "rl_loss_type": dict.fromkeys(("bnpo", "cispo", "sapo"), _NO_SUCH_LOSS),
    "eval_strategy": {"steps": "rows are measured after each epoch. Use epoch or no"},
    "rl_optimize_device_cache": {
        "false": "a mini-batch too large for the device is always halved, which changes no gradient. Leave it out"
    },
}
"""Values of other fields, by field name, and why each is refused and what to do."""
