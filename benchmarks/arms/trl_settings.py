"""What every TRL trainer is told: this machine's CPU in float32, no reports, no checkpoints."""

from typing import Any

ENDLESS = 1_000_000
"""Steps of a loop that is stopped from outside."""


def settings(**more: Any) -> dict[str, Any]:
    """Keywords of a TRL config. Its bf16 and checkpointing defaults cost four times as much on a CPU."""
    return {
        "output_dir": ".rlhf/benchmarks/trl",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "logging_steps": ENDLESS,
        "disable_tqdm": True,
        "seed": 0,
        **more,
    }
