"""Model folders with random weights, made once for all arms."""

import math
import shutil
from pathlib import Path
from typing import cast

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.process import HOME
from benchmarks.workloads import END_ID, FIRST_WORD, PAD_ID, SHAPES, UNKNOWN_ID, Shape

_NEVER = 1e-9
"""Probability of tokens that must not be sampled."""
_CONSTANT = 0.5
"""First entry of every embedding: large beside the others, so that the end token's logit can be set."""


def model_folder(shape: str, mean_length: int | None = None, seed: int = 0) -> Path:
    """The folder of a model, made where it is not there.

    Args:
        shape: a key of SHAPES.
        mean_length: tokens of a response on average, the length limit left out; None ends none, so that all sides
            sample equally many tokens without being told to ignore the end token.
        seed: of the weights.
    """
    folder = HOME / "models" / f"{shape}-{mean_length or 'endless'}-{seed}"
    if not folder.exists():
        draft = folder.with_suffix(".partial")
        shutil.rmtree(draft, ignore_errors=True)
        model = _built(SHAPES[shape], seed)
        _set_end_probability(model, _NEVER if mean_length is None else 1 / mean_length)
        model.save_pretrained(draft)
        _tokenizer(SHAPES[shape].vocabulary).save_pretrained(draft)
        draft.rename(folder)
    return folder


def _built(shape: Shape, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_value_heads,
            max_position_embeddings=shape.positions,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=END_ID,
            pad_token_id=PAD_ID,
        )
    )
    with torch.no_grad():
        _embedding(model)[:, 0] = _CONSTANT
    return model.eval()


@torch.no_grad()
def _set_end_probability(model: LlamaForCausalLM, probability: float) -> None:
    """Give the end token the same logit everywhere: one that makes it about as probable as asked for.

    Padding and the unknown token are never sampled: peers take a padding token for padding wherever it stands.
    """
    weight = _embedding(model)
    ids = torch.randint(FIRST_WORD, len(weight), (4, 32))
    hidden = cast(torch.nn.Module, model.get_decoder())(input_ids=ids)[0]
    others = (hidden @ weight.T)[..., FIRST_WORD:].logsumexp(dim=-1).mean()
    for token, wanted in ((PAD_ID, _NEVER), (UNKNOWN_ID, _NEVER), (END_ID, probability)):
        weight[token] = 0
        weight[token, 0] = (others + math.log(wanted / (1 - wanted))) / hidden[..., 0].mean()


def _embedding(model: LlamaForCausalLM) -> torch.Tensor:
    return cast(torch.nn.Embedding, model.get_input_embeddings()).weight


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    words = {f"w{token}": token for token in range(FIRST_WORD, vocabulary)}
    special = {"<pad>": PAD_ID, "<eos>": END_ID, "<unk>": UNKNOWN_ID}
    backend = Tokenizer(models.WordLevel({**special, **words}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
