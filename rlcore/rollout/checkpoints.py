"""Checkpoints of a run on disk: written by process 0, read by all, refused where they are another run's."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlcore.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from rlcore.configs import RolloutConfig
from rlcore.errors import CheckpointError
from rlcore.forward_backward import AsyncTrainingClient, in_each_process, in_first_process
from rlcore.models import frozen_weights, language_model_of
from rlcore.rollout.prompts import EncodedPrompt
from rlcore.run_folder import (
    pack_optimizer,
    put_weights,
    require_same_run,
    rows_sha256,
    trained_weights,
    unpack_optimizer,
    weights_sha256,
)

FREE_SETTINGS = {"device", "num_iterations", "save_every"}
"""Settings that a resume may change: no iteration learns otherwise for them."""


class RunCheckpoints:
    """What training changed, the optimizer and JSON of one run, as folders `step-<iteration>`.

    All processes call each method. Process 0 alone writes, and all read the folder that it means.

    Args:
        client: of the policy.
        optimizer: of its trained weights.
        config: settings of the run.

    Attributes:
        data: hashes of the run's prompts; none before `belong_to`.
    """

    def __init__(self, client: AsyncTrainingClient, optimizer: torch.optim.Optimizer, config: RolloutConfig):
        self._client, self._optimizer, self._config = client, optimizer, config
        self.data: dict[str, str] = {}

    def belong_to(self, prompts: Sequence[EncodedPrompt], validation: Sequence[EncodedPrompt]) -> None:
        """From here on the run is one over these prompts, in this order. Before, any prompts are taken for its own."""
        self.data = {
            name: rows_sha256([prompt.prompt, prompt.ids, dict(prompt.metadata)] for prompt in rows)
            for name, rows in (("prompts", prompts), ("validation", validation))
        }

    def write(self, folder: Path, step: int, state: Mapping[str, Any], *, best_step: int) -> Path:
        """Write `<folder>/step-<step>` in one step and return its path. The newest two and that of best_step stay.

        Raises:
            CheckpointError: a weight is not finite. Nothing was written.
        """
        identity = self._identity

        def write() -> Path:
            tensors, packed = pack_optimizer(self._optimizer)
            groups = {"weights": trained_weights(self._client.model), "optimizer": tensors}
            whole = {**state, "identity": identity, "optimizer": packed}
            return save_checkpoint(folder, step, groups, whole, keep={best_step})

        return in_first_process(self._client, write)

    def take_up(self, folder: Path) -> dict[str, Any] | None:
        """Put back weights and optimizer, and return the JSON of `write`; None where nothing was written yet.

        Args:
            folder: a checkpoint, or a folder of them, of which the newest whole one is taken.

        Raises:
            CheckpointError: there are checkpoints and none of them is whole, or it is of another run, or weights or
                moments are missing or of another shape.
        """

        def find() -> Path | None:
            return folder if (folder / "manifest.json").exists() else latest_checkpoint(folder)

        path = in_first_process(self._client, find)
        return None if path is None else in_each_process(self._client, lambda: self._go_on_from(path))[0]

    def put_weights(self, folder: Path, step: int) -> None:
        """Put back the weights of `<folder>/step-<step>`; the optimizer stays as it is.

        Raises:
            CheckpointError: it is missing, damaged or of another model.
        """
        path = in_first_process(self._client, lambda: folder / f"step-{step}")
        in_each_process(self._client, lambda: self._put_weights(path, load_checkpoint(path).tensors["weights"]))

    @property
    def _identity(self) -> dict[str, Any]:
        """What a run and its resume have in common."""
        settings = self._config.model_dump(mode="json", exclude=FREE_SETTINGS)
        return {"config": settings, "frozen": self._frozen, **self.data}

    @cached_property
    def _frozen(self) -> dict[str, str]:
        """Hashes of the weights that no checkpoint holds: those under adapters and those of the reference."""

        def sha256(model: nn.Module) -> str:
            return weights_sha256(frozen_weights(language_model_of(model)))

        hashes = {"policy": self._client.evaluate(sha256).result()}
        if self._client.reference_model is not None:
            hashes["reference"] = self._client.evaluate(sha256, use_reference=True).result()
        return hashes

    def _go_on_from(self, path: Path) -> dict[str, Any]:
        checkpoint = load_checkpoint(path)
        tensors, state = checkpoint.tensors, checkpoint.state
        missing = {"weights", "optimizer"} - tensors.keys() | {"identity", "optimizer"} - state.keys()
        if missing:
            raise CheckpointError(
                f"{path}: found no {' and no '.join(sorted(missing))}. Use a checkpoint of this trainer."
            )
        # A checkpoint that is taken up before the prompts are known may be of any.
        found = {name: state["identity"].get(name) for name in self._identity}
        require_same_run(path, found, self._identity)
        self._put_weights(path, tensors["weights"])
        unpack_optimizer(self._optimizer, tensors["optimizer"], state["optimizer"])
        return state

    def _put_weights(self, path: Path, weights: Mapping[str, torch.Tensor]) -> None:
        self._client.evaluate(lambda model: put_weights(path, model, weights)).result()
