"""Queued training of one model: forward-backward passes, evaluations and optimiser steps in one order."""

from rlcore.forward_backward.clients import AsyncTrainingClient, ForwardBackwardPipeline
from rlcore.forward_backward.future import AsyncTrainingFuture, ForwardBackwardOutput, OptimStepOutput, StepOutput

__all__ = [
    "AsyncTrainingClient",
    "AsyncTrainingFuture",
    "ForwardBackwardOutput",
    "ForwardBackwardPipeline",
    "OptimStepOutput",
    "StepOutput",
]
