"""Small reward models on every kind of body, rows for them, and a tokenizer."""

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from rlcore.configs import RewardModelConfig
from rlcore.reward import RewardModel
from rlcore.scratch import train_tokenizer
from tests.support.tiny import tiny_gemma2, tiny_gpt2, tiny_llama, tiny_qwen2

SIZES = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODER = SIZES | {"intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.2}
BODIES = {
    "llama": lambda: tiny_llama(vocab_size=300),
    # its linear layers are Conv1D
    "gpt2": lambda: tiny_gpt2(vocab_size=300),
    "qwen2": lambda: tiny_qwen2(vocab_size=300),
    "gemma2": lambda: tiny_gemma2(vocab_size=300),
    "bert": lambda: BertModel(BertConfig(**ENCODER)),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(
            vocab_size=300, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=64,
            initializer_range=0.2,
        )
    ),
    # counts positions from behind its padding position, 1
    "roberta": lambda: RobertaModel(RobertaConfig(**ENCODER | {"max_position_embeddings": 66, "pad_token_id": 1})),
}  # fmt: skip
ROWS = [[5, 9, 7], [11, 4, 8, 250, 17, 30, 2, 61, 99], [42]]
PAD = 3
PROMPTS = ["What is 2 plus 3?", "Add 1 and 1, then think about it for a while.", "Hi"]
RESPONSES = ["The answer is 5.", "2", "Sure! The answer is 5."]


def body(name: str = "llama") -> PreTrainedModel:
    """A body with random weights, the same ones for every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BODIES[name]().eval()


def config(**settings: Any) -> RewardModelConfig:
    """Settings of a reward model that reads 48 tokens."""
    return RewardModelConfig(**{"model_name": "tiny", "max_length": 48, **settings})


def reward_model(name: str = "llama", **settings: Any) -> RewardModel:
    """A reward model in evaluation mode."""
    return RewardModel(config(**settings), body(name)).eval()


def with_effect(model: RewardModel) -> RewardModel:
    """The same model, its adapters, which start as no change, made to change something."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.5)
    return model


def padded(rows: list[list[int]], left: int = 0, right: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in one rectangle, right-padded, with more padding on both sides."""
    width = max(map(len, rows))
    ids = [[PAD] * left + row + [PAD] * (width - len(row) + right) for row in rows]
    mask = [[0] * left + [1] * len(row) + [0] * (width - len(row) + right) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Knows the 300 tokens of the bodies."""
    return train_tokenizer(["What is 2 plus 3?", "The answer is 5.", "Sure! The answer is 5."], 300)


@cache
def encoder_tokenizer() -> PreTrainedTokenizerFast:
    """As of a BERT: [CLS] text [SEP], and neither a beginning nor an end token."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    backend = Tokenizer(WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = BertPreTokenizer()
    backend.train_from_iterator([*PROMPTS, *RESPONSES], WordPieceTrainer(vocab_size=100, special_tokens=special))
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)
