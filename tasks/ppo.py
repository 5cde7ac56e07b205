"""Stage policy with algorithm ppo: the SFT model against the reward model."""

import datasets

from rlcore.backends import trainer_for
from rlcore.configs import PPOConfig
from rlcore.reward import RewardModelSource
from tasks.records.artifacts import POLICY_DIR, PROMPTS, REWARD_DIR
from tasks.records.stage import main, stage
from tasks.rows import training_rows


def train_ppo(config: PPOConfig) -> None:
    """Train the policy on prompts alone: nothing but the reward model's scores says what is good."""
    with stage("ppo", config) as run:
        data = datasets.DatasetDict(
            {split: training_rows(PROMPTS[split], ("prompt",)) for split in ("train", "validation")}
        )
        train = trainer_for("ppo")
        result = train(
            config,
            data,
            POLICY_DIR,
            reward=RewardModelSource(REWARD_DIR, device=config.device),
            resume_dir=run.resume_dir,
            on_metrics=run.log,
            on_samples=run.log_samples,
        )
        run.finish(result)


if __name__ == "__main__":
    main(train_ppo, PPOConfig)
