"""What a policy is compared with: a frozen copy, or its own base under the adapters."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import peft
from torch import Tensor, nn

from rlcore.configs import LoraConfig
from rlcore.errors import ConfigError
from rlcore.models.causal_lm import CausalLM, evaluation_mode
from rlcore.models.policy import language_model_of

Module = TypeVar("Module", bound=nn.Module)


def frozen_copy(model: Module) -> Module:
    """A copy in evaluation mode whose weights take no gradient, such as the reference of a policy."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def add_lora(model: CausalLM, config: LoraConfig) -> peft.PeftModel:
    """Put low-rank adapters into the model and freeze everything else. They start as no change at all.

    Raises:
        ConfigError: the model has adapters already, or target_modules names no module of it.
    """
    if isinstance(model, peft.PeftModel):
        raise ConfigError(
            "Found settings for adapters and a model that has some already. Leave `lora` out to train those, or merge "
            "them first."
        )
    targets = config.target_modules if isinstance(config.target_modules, str) else list(config.target_modules)
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # fractions work
        target_modules=targets,
    )
    try:
        return cast(peft.PeftModel, peft.get_peft_model(model, settings))
    except ValueError as error:
        raise ConfigError(f"target_modules={targets!r}: {error} Use names of linear layers, or all-linear.") from error


@contextmanager
def reference_of(model: nn.Module) -> Iterator[nn.Module]:
    """The model with its adapters switched off and in evaluation mode: the reference, without a second copy.

    Raises:
        ConfigError: the model has no adapters.
    """
    wrapper = language_model_of(model)
    if not isinstance(wrapper, peft.PeftModel):
        raise ConfigError("Found a model without adapters. Keep a frozen copy as its reference.")
    with evaluation_mode(model), wrapper.disable_adapter():
        yield model


def frozen_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Weights that take no gradient: all of a reference, those under the adapters of a policy."""
    return ((name, weight) for name, weight in model.named_parameters() if not weight.requires_grad)
