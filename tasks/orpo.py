"""Stage policy with algorithm orpo: the SFT model on preference pairs, without a reward model or a reference."""

from rlcore.backends import trainer_for
from rlcore.configs import ORPOConfig
from tasks.records.artifacts import POLICY_DIR, PREFERENCES
from tasks.records.stage import main, stage
from tasks.rows import PAIR_COLUMNS, training_splits


def train_orpo(config: ORPOConfig) -> None:
    """Train the policy on the preference pairs; the step with the least loss on the validation pairs is published."""
    with stage("orpo", config) as run:
        data = training_splits(PREFERENCES, PAIR_COLUMNS)
        train = trainer_for("orpo")
        sinks = {"on_metrics": run.log, "on_samples": run.log_samples}
        run.finish(train(config, data, POLICY_DIR, resume_dir=run.resume_dir, **sinks))


if __name__ == "__main__":
    main(train_orpo, ORPOConfig)
