"""Stage sft: supervised fine-tuning on the demonstrations."""

import datasets

from rlcore.backends import trainer_for
from rlcore.configs import SFTConfig
from tasks.records.artifacts import DEMONSTRATIONS, SFT_DIR
from tasks.records.stage import main, stage
from tasks.rows import training_rows


def train_sft(config: SFTConfig) -> None:
    """Fine-tune the start model on the training demonstrations."""
    with stage("sft", config) as run:
        data = datasets.DatasetDict(train=training_rows(DEMONSTRATIONS["train"], ("prompt", "response")))
        train = trainer_for("sft")
        run.finish(train(config, data, SFT_DIR, resume_dir=run.resume_dir, on_metrics=run.log))


if __name__ == "__main__":
    main(train_sft, SFTConfig)
