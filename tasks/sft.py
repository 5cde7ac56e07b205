"""Stage sft: supervised fine-tuning on the demonstrations."""

from rlcore.backends import trainer_for
from rlcore.configs import SFTConfig
from rlcore.training_record import record_training
from tasks.records.artifacts import DEMONSTRATIONS, SFT_DIR
from tasks.records.stage import main, stage
from tasks.rows import training_splits


def train_sft(config: SFTConfig) -> None:
    """Fine-tune the start model on the training demonstrations."""
    with stage("sft", config) as run:
        data = training_splits(DEMONSTRATIONS, ("prompt", "response"))
        train = trainer_for("sft")
        result = train(config, data, SFT_DIR, resume_dir=run.resume_dir, on_metrics=run.log)
        record_training(result, "sft", config.model_name)
        run.finish(result)


if __name__ == "__main__":
    main(train_sft, SFTConfig)
