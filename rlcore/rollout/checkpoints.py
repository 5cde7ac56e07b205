"""The weights and optimizer of a run on disk: written by process 0, read by all."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlcore.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    pack_optimizer,
    save_checkpoint,
    unpack_optimizer,
)
from rlcore.configs import RolloutConfig
from rlcore.errors import CheckpointError
from rlcore.forward_backward import AsyncTrainingClient
from rlcore.models import frozen_weights, language_model_of
from rlcore.rollout.prompts import EncodedPrompt
from rlcore.rollout.sharing import in_first_process
from rlcore.run_folder import put_weights, require_same_run, rows_sha256, trained_weights, weights_sha256

BEST = "best"
"""Folder of the best model so far, beside the checkpoints."""

# Settings under which a resumed run still computes the same numbers.
FREE_SETTINGS = {"device", "num_iterations", "save_every"}


def write_state(
    client: AsyncTrainingClient,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    step: int,
    state: Mapping[str, Any],
) -> Path:
    """Write `<folder>/step-<step>`: what training changed, the optimizer, and the JSON state. Returns its path.

    Raises:
        CheckpointError: a weight is not finite. Nothing was written.
    """

    def write(model: nn.Module) -> Path:
        tensors, packed = pack_optimizer(optimizer)
        groups = {"weights": trained_weights(model), "optimizer": tensors}
        return save_checkpoint(folder, step, groups, {**state, "optimizer": packed})

    return in_first_process(client, write)


def take_up_state(
    client: AsyncTrainingClient, optimizer: torch.optim.Optimizer, folder: Path, identity: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Give model and optimizer what `write_state` wrote, and return the JSON state; None where nothing was written yet.

    Args:
        client, optimizer: take the weights and the moments.
        folder: a checkpoint, or a folder of them, of which the newest whole one is taken.
        identity: of this run; see `identity_of_run`. What else the checkpoint knows of its run does not matter.

    Raises:
        CheckpointError: there are checkpoints and none of them is whole, or it is of another run, or weights or moments
            are missing or of another shape.
    """

    def find(_: nn.Module) -> Path | None:
        return folder if (folder / "manifest.json").exists() else latest_checkpoint(folder)

    path = in_first_process(client, find)
    if path is None:
        return None
    checkpoint = load_checkpoint(path)
    missing = {"weights", "optimizer"} - checkpoint.tensors.keys() | {"identity", "optimizer"} - checkpoint.state.keys()
    if missing:
        raise CheckpointError(f"{path}: found no {' and no '.join(sorted(missing))}. Use a checkpoint of this trainer.")
    found = checkpoint.state["identity"]
    require_same_run(path, {name: found.get(name) for name in identity}, identity)
    client.evaluate(lambda model: put_weights(path, model, checkpoint.tensors["weights"])).result()
    unpack_optimizer(optimizer, checkpoint.tensors["optimizer"], checkpoint.state["optimizer"])
    return checkpoint.state


def identity_of_run(client: AsyncTrainingClient, config: RolloutConfig) -> dict[str, Any]:
    """Settings and frozen weights, those of the reference and those under adapters: the same for a run and its resume.

    Reads every frozen weight, so it takes a while.
    """

    def frozen(model: nn.Module) -> str:
        return weights_sha256(frozen_weights(language_model_of(model)))

    hashes = {"policy": client.evaluate(frozen).result()}
    if client.reference_model is not None:
        hashes["reference"] = client.evaluate(frozen, use_reference=True).result()
    return {"config": config.model_dump(mode="json", exclude=FREE_SETTINGS), "frozen": hashes}


def identity_of_data(prompts: Sequence[EncodedPrompt], validation: Sequence[EncodedPrompt]) -> dict[str, str]:
    """Hashes of the prompts in their order."""
    return {
        name: rows_sha256([prompt.prompt, prompt.ids, dict(prompt.metadata)] for prompt in rows)
        for name, rows in (("prompts", prompts), ("validation", validation))
    }
