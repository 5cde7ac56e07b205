"""Environments of one's own, for `rlhf llm --train --trainer grpo --rl-env-module my_envs.…`."""
