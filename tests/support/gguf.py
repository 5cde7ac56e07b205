"""A tiny Llama as a GGUF file, written the way that converters to this format do."""

from pathlib import Path

import gguf
import numpy
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ Ġ", "Ċ Ċ", "h e")
HEADS, KEY_HEADS, WIDTH, LAYERS, INNER = 4, 2, 64, 2, 96
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def vocabulary() -> list[str]:
    """Three special tokens, the 256 bytes, three merges."""
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    """The model before it is quantised: grouped keys, tied embeddings."""
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def write_gguf(path: Path, model: LlamaForCausalLM, pre: str = "smollm") -> Path:
    """Write the model with matrices in Q4_1 and embeddings in Q8_0, and the vocabulary above."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary()))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(vocabulary()) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, weights in tensors(model).items():
        kind = quantisation(name)
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(model: LlamaForCausalLM) -> dict[str, numpy.ndarray]:
    """The weights under the names of the format; queries and keys in its order of rows."""
    state = {name: weight.numpy() for name, weight in model.state_dict().items()}
    named = {"token_embd.weight": state["model.embed_tokens.weight"], "output_norm.weight": state["model.norm.weight"]}
    for layer in range(LAYERS):
        for ours, theirs in NAMES.items():
            weights = state[f"model.layers.{layer}.{ours}.weight"]
            heads = {"attn_q": HEADS, "attn_k": KEY_HEADS}.get(theirs)
            named[f"blk.{layer}.{theirs}.weight"] = weights if heads is None else interleaved(weights, heads)
    return named


def interleaved(weights: numpy.ndarray, heads: int) -> numpy.ndarray:
    """The two halves of each head row by row: the format turns neighbouring numbers, transformers turns halves."""
    halves = weights.reshape(heads, 2, -1, weights.shape[1])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def quantisation(name: str) -> gguf.GGMLQuantizationType:
    """How a tensor of this name is packed."""
    if "norm" in name:
        return gguf.GGMLQuantizationType.F32
    return gguf.GGMLQuantizationType.Q8_0 if name == "token_embd.weight" else gguf.GGMLQuantizationType.Q4_1


def rounded(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """What quantisation leaves of each weight, under the names of transformers.

    It packs blocks of 32 numbers of a row, so the order of the rows does not matter.
    """
    state = {}
    for name, weight in model.state_dict().items():
        tied = name in ("lm_head.weight", "model.embed_tokens.weight")
        kind = quantisation("token_embd.weight" if tied else name)
        packed = gguf.quants.quantize(weight.numpy(), kind)
        state[name] = torch.from_numpy(numpy.array(gguf.quants.dequantize(packed, kind)))
    return state
