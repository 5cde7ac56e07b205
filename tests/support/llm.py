"""`rlhf llm --train` in this process: with a trainer that only notes what it was asked, or a real one."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from rlcore.cli.main import main
from rlcore.configs import StageConfig
from rlcore.results import TrainResult

PAIRS = [{"prompt": f"Say {n}.", "chosen": f"Here is {n}.", "rejected": "no", "answer": str(n)} for n in range(16)]


@dataclass
class Call:
    """What a trainer was asked.

    Attributes:
        stage, implementation: whose trainer.
        config: its settings.
        data: its rows.
        output_dir, resume_dir, judges: its other arguments.
    """

    stage: str
    implementation: str
    config: StageConfig
    data: datasets.DatasetDict
    output_dir: Path
    resume_dir: Path | None
    judges: dict[str, Any]


class NotedCalls:
    """Takes the place of rlcore.cli.project.trainer_for: its trainers write an empty model.

    Attributes:
        calls: in their order.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, stage: str, implementation: str) -> Any:
        def train(
            config: StageConfig,
            data: datasets.DatasetDict,
            output_dir: Path,
            *,
            resume_dir: Path | None,
            on_metrics: Any,
            on_samples: Any,
            **judges: Any,
        ) -> TrainResult:
            self.calls.append(Call(stage, implementation, config, data, output_dir, resume_dir, judges))
            on_metrics(0, {"progress/total_steps": 1.0})
            on_metrics(1, {"dpo/loss": 0.5})
            (output_dir / "adapter").mkdir(parents=True, exist_ok=True)
            (output_dir / "config.json").write_text("{}")
            (output_dir / "adapter/adapter_config.json").write_text("{}")
            return TrainResult(output_dir, 1)

        return train


def llm(*argv: object) -> int:
    """The exit code of `rlhf llm --train` with these flags."""
    return main(["llm", "--train", *map(str, argv)])


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A JSON Lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
