"""Folders of tiny models that stand in for the hub models of the documents, each of its family."""

from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.support.tiny import tiny_tokenizer
from tests.support.tools import tool_tokenizer

# What makes the end token likely enough for answers of a few tokens: a hundred iterations of PPO then take seconds.
END_BOOST = 0.15


def gemma2(folder: Path) -> Path:
    """Stands in for google/gemma-2-2b: one layer of width 16."""
    config = Gemma2Config(**_shape(), query_pre_attn_scalar=8, sliding_window=256)
    return _saved_decoder(Gemma2ForCausalLM, config, folder)


def gemma3(folder: Path) -> Path:
    """Stands in for google/gemma-3-270m: one layer of width 16."""
    config = Gemma3TextConfig(**_shape(), query_pre_attn_scalar=8, sliding_window=256)
    return _saved_decoder(Gemma3ForCausalLM, config, folder)


def qwen2(folder: Path) -> Path:
    """Stands in for deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B: one layer of width 16, a template that shows tools."""
    shape = _shape(tool_tokenizer()) | {"max_position_embeddings": 2048}
    del shape["head_dim"]
    return _saved_decoder(Qwen2ForCausalLM, Qwen2Config(**shape), folder, tool_tokenizer())


def bert(folder: Path) -> Path:
    """Stands in for bert-base-uncased: two layers of width 16, an alphabet for a vocabulary."""
    folder.mkdir(parents=True)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?!"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = BertTokenizer(vocab={token: index for index, token in enumerate(vocabulary)})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.2,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def _shape(tokenizer: PreTrainedTokenizerBase | None = None) -> dict[str, object]:
    tokenizer = tokenizer or tiny_tokenizer()
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _saved_decoder(
    model_class: type[PreTrainedModel], config: object, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> Path:
    tokenizer = tokenizer or tiny_tokenizer()
    torch.manual_seed(0)
    model = model_class(config)
    with torch.no_grad():
        # All embeddings share a direction, which the output layer reads as the end of the answer.
        model.get_input_embeddings().weight.add_(1.0)
        model.get_output_embeddings().weight[tokenizer.eos_token_id].add_(END_BOOST)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
