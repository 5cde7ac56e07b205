"""Queued training of one model: forward-backward passes, evaluations and optimiser steps in one order."""

from rlcore.forward_backward.accumulation import LossFunction
from rlcore.forward_backward.clients import AsyncTrainingClient, ForwardBackwardPipeline
from rlcore.forward_backward.future import AsyncTrainingFuture, ForwardBackwardOutput, OptimStepOutput, StepOutput
from rlcore.forward_backward.placing import training_device
from rlcore.forward_backward.sharing import in_each_process, in_first_process, in_shares, require_agreement
from rlcore.forward_backward.whole_step import LossOfPart

__all__ = [
    "AsyncTrainingClient",
    "AsyncTrainingFuture",
    "ForwardBackwardOutput",
    "ForwardBackwardPipeline",
    "LossFunction",
    "LossOfPart",
    "OptimStepOutput",
    "StepOutput",
    "in_each_process",
    "in_first_process",
    "in_shares",
    "require_agreement",
    "training_device",
]
