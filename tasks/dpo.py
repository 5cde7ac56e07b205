"""Stage policy with algorithm dpo: the SFT model on preference pairs, without a reward model and without sampling."""

from rlcore.backends import trainer_for
from rlcore.configs import DPOConfig
from tasks.records.artifacts import POLICY_DIR, PREFERENCES
from tasks.records.stage import main, stage
from tasks.rows import PAIR_COLUMNS, training_splits


def train_dpo(config: DPOConfig) -> None:
    """Train the policy on the preference pairs; the step with the least loss on the validation pairs is published."""
    with stage("dpo", config) as run:
        data = training_splits(PREFERENCES, PAIR_COLUMNS)
        train = trainer_for("dpo")
        sinks = {"on_metrics": run.log, "on_samples": run.log_samples}
        run.finish(train(config, data, POLICY_DIR, resume_dir=run.resume_dir, **sinks))


if __name__ == "__main__":
    main(train_dpo, DPOConfig)
