"""Sampling responses: exact log-probabilities, one random stream per row, the critic's values on the way."""

from rlcore.sampling.engine import Samples, StopCondition, generate
from rlcore.sampling.settings import is_number, is_whole
from rlcore.sampling.tokens import SamplingParams

__all__ = ["Samples", "SamplingParams", "StopCondition", "generate", "is_number", "is_whole"]
