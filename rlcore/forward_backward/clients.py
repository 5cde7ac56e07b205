"""The two public faces of the lane: one takes batches and knows a reference, the other takes tensors."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rlcore.errors import ConfigError, DataError
from rlcore.forward_backward.accumulation import MicroBatchLoss, loss_and_metrics
from rlcore.forward_backward.future import AsyncTrainingFuture, ForwardBackwardOutput
from rlcore.forward_backward.lane import Lane, require_function
from rlcore.forward_backward.token_checks import check_tensors, limits_of
from rlcore.forward_backward.token_losses import TokenRows, loss_arguments, loss_named, token_rows, token_scores
from rlcore.functional.logprobs import IGNORED_LABEL
from rlcore.functional.masking import position_ids_from

OutputsLoss = Callable[..., Tensor | tuple[Tensor, Mapping[str, Tensor | float]]]
"""`loss_fn(outputs, labels, **loss_fn_kwargs)`: a scalar loss, or the loss and metrics."""

CustomLoss = Callable[..., Tensor | tuple[Tensor, Mapping[str, Tensor | float]]]
"""`custom_loss_fn(model, inputs, outputs, **kwargs)`: a scalar loss, or the loss and metrics."""


class AsyncTrainingClient(Lane):
    """Queued training of a policy beside its frozen reference. Trainers use `backward`, `evaluate` and `optim_step`.

    Args:
        model: the policy, trained in place.
        reference_model: frozen by the client; None where there is none, or where the policy has LoRA adapters to switch
            off.
        device: moves the models there; None leaves the policy where it is.
        gradient_accumulation_steps: micro-batches of `forward_backward` that make one optimiser step. Losses given to
            `backward` and `train_step` are divided by the counts of their step already and need none.
        tokenizer: decodes for the stop texts of `sample`.
        checkpoint_dir: where `save_state` writes; None is `checkpoints` in the working directory.
    """

    def forward_backward(
        self,
        batch: Mapping[str, Tensor],
        loss_fn: str | OutputsLoss = "cross_entropy",
        loss_fn_kwargs: Mapping[str, Any] | None = None,
        **loss_keywords: Any,
    ) -> AsyncTrainingFuture[ForwardBackwardOutput]:
        """Queue a forward and a backward pass; see ForwardBackwardPipeline.forward_backward.

        Args:
            batch: `input_ids` [B, L]; optional `attention_mask` and `labels` [B, L].
            loss_fn, loss_fn_kwargs: as there.
            loss_keywords: more of loss_fn_kwargs, such as `advantages=...`.

        Raises:
            ConfigError, DataError: as there, or a keyword is given twice.
        """
        given = _keywords(loss_fn_kwargs)
        twice = sorted(given.keys() & loss_keywords.keys())
        if twice:
            raise ConfigError(f"Found {twice} both in loss_fn_kwargs and as keywords. Pass each once.")
        forward = _named_or_own_loss(self._rows_of(batch), loss_fn, {**given, **loss_keywords}, self.device)
        return self._queue_micro_batch(forward, is_mean=True)

    def forward(
        self, batch: Mapping[str, Tensor], use_reference: bool = False
    ) -> AsyncTrainingFuture[dict[str, Tensor]]:
        """Queue a forward pass in evaluation mode, without gradients.

        Args:
            batch: as in forward_backward.
            use_reference: run the reference instead of the policy.

        Returns:
            future of `logits` [B, L, V] and `logprobs` [B, L-1], nats of the labels, 0 where they are ignored.

        Raises:
            ConfigError: use_reference with neither a reference model nor adapters.
        """
        return self.evaluate(partial(_forward, rows=self._rows_of(batch)), use_reference=use_reference)

    def _rows_of(self, batch: Mapping[str, Tensor]) -> TokenRows:
        if not isinstance(batch, Mapping):
            raise DataError(
                f"Found a batch of type {type(batch).__name__}, expected a mapping with input_ids. Make one."
            )
        if "input_ids" not in batch:
            raise DataError(f"Found a batch with {sorted(batch)}, expected input_ids. Tokenize the text first.")
        return _rows(self, batch["input_ids"], batch.get("attention_mask"), batch.get("labels"))


class ForwardBackwardPipeline(Lane):
    """Queued training of one model on token rows.

    Args:
        model: trained in place.
        device: moves the model there; None leaves it where it is.
        max_workers: at least 1. Whatever the number, one thread works on the model in queued order: two backward passes
            at once would mix their gradients.
        gradient_accumulation_steps: micro-batches that make one optimiser step. Their losses are means and are divided
            by it, so each micro-batch weighs the same; for equal weights of tokens use `backward`.
        tokenizer: decodes for the stop texts of `sample`.
        checkpoint_dir: where `save_state` writes; None is `checkpoints` in the working directory.
    """

    def __init__(
        self,
        model: nn.Module,
        device: str | torch.device | None = None,
        max_workers: int = 2,
        gradient_accumulation_steps: int = 1,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        checkpoint_dir: str | Path | None = None,
    ):
        if max_workers < 1:
            raise ConfigError(f"Found max_workers={max_workers}, expected at least 1.")
        super().__init__(
            model,
            device=device,
            gradient_accumulation_steps=gradient_accumulation_steps,
            tokenizer=tokenizer,
            checkpoint_dir=checkpoint_dir,
        )

    def forward_backward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        loss_fn: str | OutputsLoss = "cross_entropy",
        loss_fn_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncTrainingFuture[ForwardBackwardOutput]:
        """Queue a forward and a backward pass.

        Args:
            input_ids: int64 [B, L].
            attention_mask: [B, L], 1 on real tokens; None where all are. Padding may be on either side.
            labels: int64 [B, L], -100 where nothing is learned; None learns every real token.
            loss_fn: "cross_entropy", "importance_sampling", "ppo" (see token_losses), or a function of the model's
                outputs and the labels that returns a scalar mean, or that and metrics.
            loss_fn_kwargs: what the loss needs besides; tensors of a named loss are [B, L-1], entry t for token t+1.

        Returns:
            future of loss, metrics, logits and logprobs. After a failure the rest of the optimiser step fails too.

        Raises:
            ConfigError: unknown loss, or unknown or missing loss_fn_kwargs, or one out of range.
            DataError: the shapes do not fit, an id is none of the model's, a row is longer than its context, a tensor
                is not finite, or a named loss has nothing to learn.
        """
        rows = _rows(self, input_ids, attention_mask, labels)
        forward = _named_or_own_loss(rows, loss_fn, _keywords(loss_fn_kwargs), self.device)
        return self._queue_micro_batch(forward, is_mean=True)

    def forward_backward_custom(
        self,
        input_ids: Tensor,
        custom_loss_fn: CustomLoss,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> AsyncTrainingFuture[ForwardBackwardOutput]:
        """Queue a forward and a backward pass with a loss of your own.

        Args:
            input_ids: int64 [B, L].
            custom_loss_fn: called with the model, `{"input_ids", "attention_mask"}`, the model's outputs and kwargs.
                Returns a scalar mean, or that and metrics.
            attention_mask: [B, L], 1 on real tokens.
            kwargs: handed to custom_loss_fn.

        Raises:
            ConfigError: custom_loss_fn cannot be called.
            DataError: as in forward_backward.
        """
        rows = _rows(self, input_ids, attention_mask, None)
        require_function("custom_loss_fn", custom_loss_fn)
        return self._queue_micro_batch(partial(_custom_loss, rows, custom_loss_fn, kwargs), is_mean=True)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> AsyncTrainingFuture[dict[str, Tensor]]:
        """Queue a forward pass in evaluation mode, without gradients: `logits` [B, L, V] and `logprobs` [B, L-1]."""
        return self.evaluate(partial(_forward, rows=_rows(self, input_ids, attention_mask, None)))


def _rows(lane: Lane, input_ids: Tensor, attention_mask: Tensor | None, labels: Tensor | None) -> TokenRows:
    return token_rows(input_ids, attention_mask, labels, lane.device, limits_of(lane.model))


def _keywords(loss_fn_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    if loss_fn_kwargs is not None and not isinstance(loss_fn_kwargs, Mapping):
        raise ConfigError(
            f"Found loss_fn_kwargs as {type(loss_fn_kwargs).__name__}, expected a mapping. "
            "Pass the arguments of the loss by name."
        )
    return dict(loss_fn_kwargs or {})


def _named_or_own_loss(
    rows: TokenRows, loss_fn: str | OutputsLoss, loss_fn_kwargs: Mapping[str, Any], device: torch.device
) -> Callable[[nn.Module], MicroBatchLoss]:
    if not isinstance(loss_fn, str):
        require_function("loss_fn", loss_fn)
        return partial(_own_loss, rows, loss_fn, loss_fn_kwargs)
    arguments = loss_arguments(loss_fn, loss_fn_kwargs, device)
    counted = rows.targets != IGNORED_LABEL
    if not bool(counted.any()):
        raise DataError(
            "Found no label to learn: all are ignored, or stand on padding or right after it. Drop such a batch."
        )
    check_tensors(arguments, counted)
    loss = partial(loss_named(loss_fn), **arguments)

    def forward(model: nn.Module) -> MicroBatchLoss:
        logits = _logits(_outputs(model, rows))
        scores = token_scores(logits, rows)
        return MicroBatchLoss(*loss(scores), logits.detach(), scores.logprobs.detach())

    return forward


def _own_loss(rows: TokenRows, loss_fn: OutputsLoss, arguments: Mapping[str, Any], model: nn.Module) -> MicroBatchLoss:
    outputs = _outputs(model, rows)
    return _with_tensors(loss_fn(outputs, rows.labels, **arguments), outputs, rows)


def _custom_loss(
    rows: TokenRows, custom_loss_fn: CustomLoss, arguments: Mapping[str, Any], model: nn.Module
) -> MicroBatchLoss:
    outputs = _outputs(model, rows)
    inputs = {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask}
    return _with_tensors(custom_loss_fn(model, inputs, outputs, **arguments), outputs, rows)


def _with_tensors(returned: Any, outputs: Any, rows: TokenRows) -> MicroBatchLoss:
    loss, metrics, *_ = loss_and_metrics(returned if isinstance(returned, tuple) else (returned, {}))
    logits = _logits(outputs).detach()
    return MicroBatchLoss(loss, metrics, logits, token_scores(logits, rows).logprobs)


def _forward(model: nn.Module, rows: TokenRows) -> dict[str, Tensor]:
    logits = _logits(_outputs(model, rows))
    return {"logits": logits, "logprobs": token_scores(logits, rows).logprobs}


def _outputs(model: nn.Module, rows: TokenRows) -> Any:
    """The model's outputs. Positions count real tokens, so that a left-padded row is read as it would be alone."""
    arguments = {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask}
    if rows.attention_mask is not None and "position_ids" in _parameters_of(model):
        arguments["position_ids"] = position_ids_from(rows.attention_mask)
    return model(**arguments)


def _parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    adapted = getattr(model, "get_base_model", None)
    return inspect.signature((adapted() if adapted else model).forward).parameters


def _logits(outputs: Any) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise DataError(f"Found {type(outputs).__name__} without logits. Use a causal language model.")
    return logits
