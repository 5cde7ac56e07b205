"""Learning from responses that a policy samples itself: what PPO shares with its critic-free relatives."""

from rlcore.rollout.collection import MeasuredResponse, Response, Rollout, sample_responses
from rlcore.rollout.figures import rollout_metrics, sample_rows
from rlcore.rollout.prompts import EncodedPrompt, Prompts, choose_prompts, encode_prompts
from rlcore.rollout.publishing import train_and_publish
from rlcore.rollout.reward_sources import Reward, accepted_scores, reward_source_of, score_responses
from rlcore.rollout.trainer import RolloutTrainer
from rlcore.rollout.update import LossesOfStep, update_measures, update_rollout

__all__ = [
    "EncodedPrompt",
    "LossesOfStep",
    "MeasuredResponse",
    "Prompts",
    "Response",
    "Reward",
    "Rollout",
    "RolloutTrainer",
    "accepted_scores",
    "choose_prompts",
    "encode_prompts",
    "reward_source_of",
    "rollout_metrics",
    "sample_responses",
    "sample_rows",
    "score_responses",
    "train_and_publish",
    "update_measures",
    "update_rollout",
]
