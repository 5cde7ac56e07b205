"""Causal language models as policy, critic and reference: loading, value head, log-probabilities, adapters, saving."""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import peft
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlcore.batches import Sequences
from rlcore.configs import LoraConfig
from rlcore.errors import CheckpointError, ConfigError
from rlcore.functional.logprobs import response_logprobs_and_detached_entropy, response_logprobs_and_entropy
from rlcore.functional.masking import position_ids_from

CausalLM = PreTrainedModel | peft.PeftModel
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class ResponseOutputs:
    """What a policy with a critic says about responses. All [B, T], float32, 0 on padding."""

    logprobs: Tensor
    """Nats of response token t at the temperature."""
    entropy: Tensor
    """Nats, of the unfiltered distribution of token t."""
    values: Tensor
    """Critic before token t, reward units."""


class ValueHead(nn.Module):
    """Critic on hidden states: Linear to twice the width, ReLU, Linear to one value.

    The last layer starts at 0, so that the first advantages come from rewards and not from random weights.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, 2 * hidden_size)
        self.activation = nn.ReLU()
        self.output = nn.Linear(2 * hidden_size, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Values [...] of hidden states [..., H], in the precision of the head, whatever the trunk runs in."""
        with torch.autocast(hidden.device.type, enabled=False):
            dense = self.dense(hidden.to(self.dense.weight.dtype))
            return cast(Tensor, self.output(self.activation(dense)).squeeze(-1))


class TrunkAndHead:
    """The two halves of a causal language model, called apart: tokens to hidden states, hidden states to logits.

    Args:
        model: a causal language model, with or without adapters.

    Raises:
        ConfigError: the model has no decoder or no output layer of its own.
    """

    def __init__(self, model: CausalLM):
        causal_lm = without_wrapper(model)
        self.trunk: nn.Module = causal_lm.get_decoder()
        self.head: nn.Linear = causal_lm.get_output_embeddings()
        if self.trunk is None or self.trunk is causal_lm or self.head is None:
            raise ConfigError(
                f"{type(causal_lm).__name__}: found no decoder with an output layer. Use a causal language model."
            )
        self.arguments = frozenset(inspect.signature(self.trunk.forward).parameters)
        config = causal_lm.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._scale: float = (getattr(config, "logit_scale", None) or 1) / (
            getattr(config, "logits_scaling", None) or 1
        )

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None, **arguments: Any) -> Tensor:
        """Hidden states [B, L, H] that the head reads.

        Positions count real tokens, so a left-padded row is read as it would be alone. Without attention_mask nothing
        may be padded on the left; padding on the right changes nothing before it.
        """
        if attention_mask is not None and "position_ids" in self.arguments and "position_ids" not in arguments:
            arguments["position_ids"] = position_ids_from(attention_mask)
        return cast(Tensor, self.trunk(input_ids=input_ids, attention_mask=attention_mask, **arguments)[0])

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H], scaled and capped as in the model's own forward pass."""
        logits = self.head(hidden)
        if self._scale != 1:
            logits = logits * self._scale
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)


class PPOModel(nn.Module):
    """A causal language model with a critic on its last hidden states.

    Attributes:
        base_model: the language model, with or without adapters.
        hidden_size: H, the width that the output layer and the critic read.
        value_head: the critic.

    Raises:
        ConfigError: the logits are not a function of the decoder's last hidden state that this library knows.
    """

    def __init__(self, base_model: CausalLM):
        super().__init__()
        self.base_model = base_model
        require_separable(base_model)
        head = TrunkAndHead(base_model).head
        self.hidden_size: int = head.weight.shape[-1]
        self.value_head = ValueHead(self.hidden_size).to(head.weight.device)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, return_value: bool = False
    ) -> dict[str, Tensor]:
        """`logits` [B, L, V] and, if asked for, `values` [B, L] of input_ids [B, L] with attention_mask [B, L]."""
        parts = TrunkAndHead(self.base_model)
        hidden = parts.hidden(input_ids, attention_mask)
        outputs = {"logits": parts.logits(hidden)}
        return {**outputs, "values": self.value_head(hidden)} if return_value else outputs

    def response_outputs(self, sequences: Sequences, temperature: float) -> ResponseOutputs:
        """Log-probabilities, entropy and values of the response tokens, all with gradient.

        Raises:
            ConfigError: temperature is not above 0.
        """
        return self._measured(response_logprobs_and_entropy, sequences, temperature)

    def response_outputs_with_detached_entropy(self, sequences: Sequences, temperature: float) -> ResponseOutputs:
        """As response_outputs, the entropy without gradient: a metric keeps no memory for the backward pass."""
        return self._measured(response_logprobs_and_detached_entropy, sequences, temperature)

    def response_values(self, sequences: Sequences) -> Tensor:
        """Values [B, T] before each response token, 0 on padding, with gradient for the value head alone."""
        with torch.no_grad():
            states = self._states(sequences)
        values: Tensor = self.value_head(states[:, :-1])
        return values.where(sequences.response_mask, 0.0)

    def bootstrap_values(self, sequences: Sequences) -> Tensor:
        """Values [B] after the last token of each response: what is still to come where the length limit cut it."""
        states = self._states(sequences)
        lengths = sequences.response_mask.sum(dim=1)
        return cast(Tensor, self.value_head(states[torch.arange(len(lengths), device=lengths.device), lengths]))

    def _measured(
        self, measure: Callable[..., tuple[Tensor, Tensor]], sequences: Sequences, temperature: float
    ) -> ResponseOutputs:
        states = self._states(sequences)
        logits = TrunkAndHead(self.base_model).logits
        logprobs, entropy = measure(states, logits, sequences.response_ids, temperature=temperature)
        mask = sequences.response_mask
        values = self.value_head(states[:, :-1])
        return ResponseOutputs(logprobs.where(mask, 0.0), entropy.where(mask, 0.0), values.where(mask, 0.0))

    def _states(self, sequences: Sequences) -> Tensor:
        """Hidden states [B, 1 + T, H] at the last prompt token and at each response token.

        Rows are shifted to start in the first column: then all padding is on the right, where a causal model needs no
        mask, and positions count from 0 even in models that know absolute positions only.
        """
        prompt_mask = sequences.attention_mask[:, : sequences.prompt_length]
        prompt_lengths = prompt_mask.sum(dim=1, keepdim=True)
        total_length = sequences.input_ids.shape[1]
        width = int(sequences.attention_mask.sum(dim=1).max())
        counter = torch.arange(total_length + 1, device=prompt_lengths.device)
        columns = (sequences.prompt_length - prompt_lengths + counter[:width]).clamp(max=total_length - 1)
        hidden = TrunkAndHead(self.base_model).hidden(sequences.input_ids.gather(1, columns))
        steps = sequences.response_mask.shape[1] + 1
        positions = (prompt_lengths - 1 + counter[:steps]).clamp(max=width - 1)
        rows = positions + width * torch.arange(len(positions), device=positions.device)[:, None]
        return hidden.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, -1)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Global random numbers of this seed inside, on every device; the caller's own stream goes on afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def choose_device(name: str | None) -> torch.device:
    """The named device; None takes a GPU where there is one.

    Raises:
        ConfigError: the name is unknown, or it asks for a GPU that is not there.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r}: not a device. Use cpu, cuda, cuda:<number> or leave it out.") from error
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"device={name!r}: found {count} CUDA devices. Use cpu, or leave the device out.")
    return device


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Tokenizer of a folder or hub name. One without a padding token pads with its end token.

    Raises:
        ConfigError: there is no such folder or hub name, or it holds no tokenizer.
    """
    _check_folder(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _unresolved(name, "tokenizer", error) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return cast(PreTrainedTokenizerBase, tokenizer)


def load_causal_lm(
    name_or_model: str | Path | CausalLM,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> CausalLM:
    """Causal language model of a folder or hub name, in evaluation mode. Code from the model's repository is never run.

    An object is moved to the device and otherwise left as it is.

    Args:
        name_or_model: folder, hub name or model.
        device: where to put it; None leaves it where it is, which is the CPU after loading.
        dtype: precision of the weights.

    Raises:
        ConfigError: there is no such folder or hub name, or it holds no causal language model.
        CheckpointError: weights are damaged, or some are missing and would be random.
    """
    if not isinstance(name_or_model, str | Path):
        return name_or_model if device is None else nn.Module.to(name_or_model, device)
    folder = _check_folder(name_or_model)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(f"Found no config.json in {folder}. Expected a model folder as `save_pretrained` writes it.")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name_or_model, dtype=dtype, trust_remote_code=False, output_loading_info=True
        )
    except SafetensorError as error:
        raise CheckpointError(f"The weights in {folder} are damaged: {error}. Restore or train them again.") from error
    except (OSError, ValueError) as error:
        raise _unresolved(name_or_model, "causal language model", error) from error
    model: PreTrainedModel = loaded[0]
    lost = sorted({*loaded[1]["missing_keys"], *(key[0] for key in loaded[1]["mismatched_keys"])})
    if lost:
        raise CheckpointError(
            f"{name_or_model}: {len(lost)} weights are missing or of another shape, such as {lost[0]}; they would be "
            "random. Expected a complete causal language model. Restore the folder, or name another one."
        )
    nn.Module.eval(model)
    return model if device is None else nn.Module.to(model, device)


def save_causal_lm(model: CausalLM, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Write an ordinary model folder: config, safetensors, tokenizer. Adapters are merged into a copy of the model."""
    if isinstance(model, peft.PeftModel):
        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(folder)


def frozen_copy(model: Module) -> Module:
    """A copy in evaluation mode whose weights take no gradient, such as the reference of a policy."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def add_lora(model: PreTrainedModel, config: LoraConfig) -> peft.PeftModel:
    """Put low-rank adapters into the model and freeze everything else. They start as no change at all.

    Raises:
        ConfigError: target_modules names no module of the model.
    """
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
    wrapper = model.base_model if isinstance(model, PPOModel) else model
    if not isinstance(wrapper, peft.PeftModel):
        raise ConfigError("Found a model without adapters. Keep a frozen copy as its reference.")
    with evaluation_mode(model), wrapper.disable_adapter():
        yield model


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every submodule's own mode again afterwards, exceptions included."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def without_wrapper(model: CausalLM) -> PreTrainedModel:
    """The language model itself; adapters stay inside its layers."""
    return cast(PreTrainedModel, model.get_base_model()) if isinstance(model, peft.PeftModel) else model


def context_length(model: CausalLM) -> int | None:
    """Tokens that the model reads at most; None where its config names no limit."""
    return getattr(without_wrapper(model).config.get_text_config(), "max_position_embeddings", None)


def vocabulary_size(model: CausalLM) -> int:
    """Tokens that the model has an embedding for."""
    return cast(nn.Embedding, without_wrapper(model).get_input_embeddings()).num_embeddings


def frozen_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Weights that take no gradient: all of a reference, those under the adapters of a policy."""
    return ((name, weight) for name, weight in model.named_parameters() if not weight.requires_grad)


def require_same_vocabulary(model: CausalLM, reference: CausalLM) -> None:
    """Let a reference pass that knows as many tokens as the policy.

    Raises:
        ConfigError: it knows more or fewer.
    """
    sizes = vocabulary_size(model), vocabulary_size(reference)
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"Found {sizes[0]} tokens in the policy's vocabulary and {sizes[1]} in the reference's, expected the same "
            "tokens. Use a reference with the policy's tokenizer."
        )


def require_separable(model: CausalLM) -> None:
    """Refuse a model whose logits come out differently when decoder and output layer are called apart.

    Raises:
        ConfigError: they do, or it has no decoder or no output layer of its own.
    """
    parts = TrunkAndHead(model)
    ids = torch.tensor([[1, 2]], device=parts.head.weight.device)
    with torch.no_grad(), evaluation_mode(model):
        whole = model(input_ids=ids).logits
        apart = parts.logits(parts.hidden(ids))
    if not torch.allclose(apart, whole, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"{type(without_wrapper(model)).__name__} does more to its logits than scale and cap them, so decoder and "
            "output layer cannot be called apart. Use another model."
        )


def _check_folder(name: str | Path) -> Path:
    folder = Path(name)
    # A hub name has at most one slash, so anything else that is no folder is a mistake and not worth a download.
    is_path = isinstance(name, Path) or folder.is_absolute() or str(name).startswith(".") or len(folder.parts) > 2
    if is_path and not folder.is_dir():
        raise ConfigError(
            f"Found no folder {str(name)!r}. Expected a model folder or a hub name, `name` or `owner/name`."
        )
    return folder


def _unresolved(name: str | Path, what: str, error: Exception) -> ConfigError:
    reason = str(error).splitlines()[0]
    return ConfigError(f"Found no {what} at {str(name)!r}: {reason} Expected a model folder or a hub name that exists.")
