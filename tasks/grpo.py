"""Stage policy with algorithm grpo: the SFT model against the reward model, each answer judged against its siblings."""

from rlcore.backends import trainer_for
from rlcore.configs import GRPOConfig
from tasks.policy_reward import prompts_and_reward
from tasks.records.artifacts import POLICY_DIR, PROMPTS, REWARD_DIR
from tasks.records.stage import main, stage


def train_grpo(config: GRPOConfig) -> None:
    """Train the policy on prompts alone: nothing but scores says what is good, by default the reward model's."""
    with stage("grpo", config) as run:
        data, reward = prompts_and_reward(PROMPTS, REWARD_DIR, config.device)
        train = trainer_for("grpo")
        sinks = {"on_metrics": run.log, "on_samples": run.log_samples}
        run.finish(train(config, data, POLICY_DIR, reward=reward, resume_dir=run.resume_dir, **sinks))


if __name__ == "__main__":
    main(train_grpo, GRPOConfig)
