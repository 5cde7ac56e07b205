"""Stage reward: a reward model from preference pairs, on the body of the SFT model."""

from rlcore.backends import trainer_for
from rlcore.configs import RewardModelConfig
from rlcore.training_record import record_training
from tasks.records.artifacts import PREFERENCES, REWARD_DIR, SFT_DIR
from tasks.records.stage import main, stage
from tasks.rows import PAIR_COLUMNS, training_splits


def train_reward(config: RewardModelConfig) -> None:
    """Train on the preference pairs; scores are set to mean 0 and deviation 1 on answers of the SFT model."""
    with stage("reward", config) as run:
        data = training_splits(PREFERENCES, PAIR_COLUMNS)
        train = trainer_for("reward")
        sinks = {"on_metrics": run.log, "on_samples": run.log_samples}
        result = train(config, data, REWARD_DIR, reference=SFT_DIR, resume_dir=run.resume_dir, **sinks)
        record_training(result, "reward", config.model_name)
        run.finish(result)


if __name__ == "__main__":
    main(train_reward, RewardModelConfig)
