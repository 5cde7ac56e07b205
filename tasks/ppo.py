"""Stage policy with algorithm ppo: the SFT model against the reward model."""

from rlcore.backends import trainer_for
from rlcore.configs import PPOConfig
from tasks.policy_reward import prompts_and_reward
from tasks.records.artifacts import POLICY_DIR, PROMPTS, REWARD_DIR
from tasks.records.stage import main, stage


def train_ppo(config: PPOConfig) -> None:
    """Train the policy on prompts alone: nothing but scores says what is good, by default the reward model's."""
    with stage("ppo", config) as run:
        data, reward = prompts_and_reward(PROMPTS, REWARD_DIR, config.device)
        train = trainer_for("ppo")
        sinks = {"on_metrics": run.log, "on_samples": run.log_samples}
        run.finish(train(config, data, POLICY_DIR, reward=reward, resume_dir=run.resume_dir, **sinks))


if __name__ == "__main__":
    main(train_ppo, PPOConfig)
