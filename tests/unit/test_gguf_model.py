"""A GGUF file becomes a model folder: the same numbers, the same tokens, whole or not at all."""

import pytest
import torch
from transformers import LlamaForCausalLM

from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.models import load_causal_lm, load_tokenizer
from tasks.demos import gguf_model
from tasks.demos.gguf_model import ORIGIN, converted
from tests.support.gguf import TEMPLATE, rounded, tiny_model, write_gguf


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A tiny model as GGUF."""
    return write_gguf(tmp_path_factory.mktemp("packed") / "tiny.gguf", tiny_model())


@pytest.fixture(scope="module")
def folder(packed):
    """Its model folder."""
    return converted(packed, packed.parent / "model")


def test_the_weights_are_what_quantisation_left_of_them_bit_for_bit(folder):
    found, expected = load_causal_lm(folder).state_dict(), rounded(tiny_model())
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], weight), name


def test_the_model_says_what_the_quantised_weights_say(folder):
    reference = LlamaForCausalLM(tiny_model().config).eval()
    reference.load_state_dict(rounded(tiny_model()))
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        torch.testing.assert_close(load_causal_lm(folder)(ids).logits, reference(ids).logits)


def test_digits_stand_alone_and_never_pull_a_blank_away_from_its_fellows(folder):
    # Without the cut at digits the blanks of "a  3" would be "Ġ" and "Ġ3".
    tokenizer = load_tokenizer(folder)
    assert tokenizer.tokenize("a  37\n\n5") == ["a", "ĠĠ", "3", "7", "ĊĊ", "5"]


@pytest.mark.parametrize("text", ["The sun.", " two  blanks ", "naïve 日本 😀", "line\n\n\tend", "1,024 <|im_start|>"])
def test_a_text_comes_back(folder, text):
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_special_tokens_and_template_are_those_of_the_file(folder):
    tokenizer = load_tokenizer(folder)
    special = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token)
    assert special == ("<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>")
    assert tokenizer.chat_template == TEMPLATE
    ids = ChatFormat(tokenizer).encode_prompt("he")
    assert tokenizer.decode(ids) == "<|im_start|>user\nhe<|im_end|>\n<|im_start|>"
    assert ids.count(1) == 2
    assert ids.count(2) == 1


def test_a_folder_of_the_same_file_is_taken_as_it_is(packed, folder, monkeypatch):
    monkeypatch.setattr(gguf_model, "_write", lambda *arguments: pytest.fail("converted again"))
    assert converted(packed, folder) == folder


def test_a_folder_of_another_file_is_written_anew(tmp_path):
    target = tmp_path / "model"
    for seed in (0, 1):
        converted(write_gguf(tmp_path / "tiny.gguf", tiny_model(seed)), target)
    found = load_causal_lm(target).state_dict()["model.norm.weight"]
    assert torch.equal(found, tiny_model(1).state_dict()["model.norm.weight"])
    weight = "model.embed_tokens.weight"
    assert torch.equal(load_causal_lm(target).state_dict()[weight], rounded(tiny_model(1))[weight])


def test_what_no_conversion_wrote_is_never_replaced(packed, tmp_path):
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(ConfigError, match="Name another folder"):
        converted(packed, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_conversion_that_ends_early_leaves_nothing(packed, tmp_path, monkeypatch):
    def full_disk(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_model, "write_json", full_disk)
    with pytest.raises(OSError, match="No space"):
        converted(packed, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_is_cut_in_an_unknown_way_is_refused(tmp_path):
    other = write_gguf(tmp_path / "tiny.gguf", tiny_model(), pre="llama-bpe")
    with pytest.raises(ConfigError, match=r"tokenizer.ggml.pre='llama-bpe'. Expected .* cut by smollm"):
        converted(other, tmp_path / "model")
    assert not (tmp_path / "model" / ORIGIN).exists()


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999], ids="{:.1%} of it".format)
def test_a_file_that_was_cut_off_is_refused_in_one_line(packed, tmp_path, share):
    whole = packed.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match=r"cut\.gguf: no whole GGUF file .* again") as refused:
        converted(tmp_path / "cut.gguf", tmp_path / "model")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "model").exists()


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "page.gguf").write_text("<!doctype html><title>Not found</title>")
    with pytest.raises(DataError, match="no whole GGUF file"):
        converted(tmp_path / "page.gguf", tmp_path / "model")


def test_a_missing_package_is_named_with_its_command(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_model, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install gguf==0\.19\.0"):
        converted(packed, tmp_path / "model")
