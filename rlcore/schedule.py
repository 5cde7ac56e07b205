"""The learning rate over the optimiser steps of a run. Loads no torch."""

import math


def learning_rate_share(step: int, warmup_steps: int, total_steps: int) -> float:
    """Share of the peak learning rate at optimiser step `step`, counted from 0: linear up to 1, then cosine to 0.

    The first step already moves, and 0 is reached just after the last one.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps)))
