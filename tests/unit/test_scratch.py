"""A model from nothing: its tokenizer, its size, its seed."""

import pytest
import torch
from jinja2 import TemplateError
from transformers import AutoTokenizer

from rlcore.configs import ScratchModelConfig
from rlcore.errors import ConfigError
from rlcore.scratch import build_model, train_tokenizer
from tests.support.tiny import tiny_tokenizer


def test_the_default_model_has_147_648_parameters():
    # 380 * 64 embeddings (tied) + 3 layers * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64 = 24320 + 123264 + 64
    syllables = [f"{consonant}{vowel}" for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou"]
    tokenizer = train_tokenizer([f"{syllable} {syllable}" for syllable in syllables], vocab_size=380)
    assert len(tokenizer) == 380
    model = build_model(ScratchModelConfig(), tokenizer, seed=0)
    assert model.num_parameters() == 147_648
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.max_position_embeddings == 128
    assert (model.config.pad_token_id, model.config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)


def test_the_seed_alone_decides_the_weights():
    tokenizer = tiny_tokenizer()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = build_model(ScratchModelConfig(), tokenizer, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    again, other = (build_model(ScratchModelConfig(), tokenizer, seed=seed) for seed in (1, 2))
    weights = [model.model.layers[0].mlp.up_proj.weight for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    # standard deviation of the initial weights; 8192 of them, so the estimate is within 3 %
    assert weights[0].std().item() == pytest.approx(0.05, rel=0.03)


def test_digits_stay_single_and_frequent_words_merge():
    tokenizer = train_tokenizer(["the answer is 1234 1234 1234"] * 50, vocab_size=300)
    tokens = tokenizer.tokenize("the answer 1234")
    assert [token for token in tokens if token.isdigit()] == ["1", "2", "3", "4"]
    assert len(tokenizer.tokenize("the answer")) == 2


@pytest.mark.parametrize("text", ["", "plain", "Zoë, 漢字, 😀", "\t two  blanks\n", "10+7=17", "\x00\x7f"])
def test_any_text_comes_back(text):
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_special_tokens_are_four_and_padding_is_not_the_end():
    tokenizer = tiny_tokenizer()
    names = ["<pad>", "<|user|>", "<|assistant|>", "<|end|>"]
    assert tokenizer.convert_tokens_to_ids(names) == [0, 1, 2, 3]
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token) == ("<pad>", "<|end|>", None)


def test_the_tokenizer_survives_a_folder(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "What is 1 plus 2?"}]
    arguments = {"add_generation_prompt": True, "return_dict": False}
    assert loaded.apply_chat_template(messages, **arguments) == tokenizer.apply_chat_template(messages, **arguments)
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 3)


def test_the_vocabulary_is_the_same_each_time():
    texts = [f"{first} and {second}" for first in "abcdefgh" for second in "stuvwxyz"]
    assert train_tokenizer(texts, 290).get_vocab() == train_tokenizer(iter(texts), 290).get_vocab()


def test_an_unknown_role_is_named():
    with pytest.raises(TemplateError, match="not system"):
        tiny_tokenizer().apply_chat_template([{"role": "system", "content": "be brief"}])


def test_a_vocabulary_without_room_for_the_bytes_is_refused():
    with pytest.raises(ConfigError, match="at least 260"):
        train_tokenizer(["a"], vocab_size=259)
