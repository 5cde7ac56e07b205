"""Tiny models and tokenizers with random weights, the same ones for every test."""

from functools import cache
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rlcore.scratch import train_tokenizer

VOCAB_SIZE = 48
PAD_ID, END_ID = 0, 3

Model = TypeVar("Model", bound=PreTrainedModel)


def tiny_llama(seed: int = 0, **settings: Any) -> LlamaForCausalLM:
    """Llama: 2 layers of width 16, rotary positions, tied embeddings. Settings go to its config."""
    config = LlamaConfig(**_shape(num_key_value_heads=2, **settings))
    return _built(LlamaForCausalLM, config, seed)


def tiny_qwen2(seed: int = 0, **settings: Any) -> Qwen2ForCausalLM:
    """Qwen2: as the Llama, with grouped keys and biases."""
    return _built(Qwen2ForCausalLM, Qwen2Config(**_shape(num_key_value_heads=1, **settings)), seed)


def tiny_gemma2(seed: int = 0, **settings: Any) -> Gemma2ForCausalLM:
    """Gemma2: a sliding window of 4 in every other layer, soft caps on attention scores and logits."""
    shape = _shape(num_key_value_heads=1, head_dim=8, query_pre_attn_scalar=8, sliding_window=4, **settings)
    return _built(Gemma2ForCausalLM, Gemma2Config(**shape), seed)


def tiny_gpt2(seed: int = 0, **settings: Any) -> GPT2LMHeadModel:
    """GPT-2: 2 layers of width 16, learnt absolute positions, dropout 0.1 while training."""
    names = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": VOCAB_SIZE}
    config = GPT2Config(
        **{**names, "bos_token_id": None, "eos_token_id": END_ID, "pad_token_id": PAD_ID, "initializer_range": 0.2}
        | settings
    )
    return _built(GPT2LMHeadModel, config, seed)


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A scratch tokenizer trained on sums: 4 special tokens, 256 bytes, 40 merges at most. Tests rely on its ids."""
    sums = [f"What is {a} plus {b}? The answer is {a + b}." for a in range(10) for b in range(10)]
    return train_tokenizer([*sums, "Sure! The answer is 7.", "I think it is 5, maybe."], vocab_size=300)


def blank_marking_tokenizer() -> PreTrainedTokenizerFast:
    """Puts `<s>` and a blank mark before every text, merges across words, and ends texts with `<s>`."""
    letters = sorted({*"abcdehnopstuw", "▁"})
    vocabulary = {token: index for index, token in enumerate(["<unk>", "<s>", *letters, "▁u", "▁up", "▁o"])}
    byte_tokens = {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    merges = [("▁", "u"), ("▁u", "p"), ("▁", "o")]
    backend = Tokenizer(BPE({**vocabulary, **byte_tokens}, merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="<s>", pad_token="<unk>")


def _shape(**settings: Any) -> dict[str, Any]:
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        # Large weights, so that distributions are far from uniform and a wrong position or mask shows.
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
    }
    return shape | settings


def _built(model_class: type[Model], config: Any, seed: int) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class(config).eval()
