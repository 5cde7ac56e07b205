"""Models and tokenizers from folders and back, where they go, and the seed of what is random in them."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rlcore.errors import CheckpointError, ConfigError
from rlcore.models import (
    PPOModel,
    choose_device,
    load_causal_lm,
    load_tokenizer,
    loading,
    save_causal_lm,
    seeded,
)
from tests.support.tiny import tiny_gemma2, tiny_gpt2, tiny_llama, tiny_qwen2, tiny_tokenizer

FAMILIES = [tiny_llama, tiny_gpt2, tiny_qwen2, tiny_gemma2]


def test_a_seed_holds_inside_and_the_stream_of_the_caller_goes_on():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first = torch.rand(2)
    with seeded(11):
        inside = torch.rand(2)
    assert torch.equal(torch.cat([first, torch.rand(2)]), expected)
    with seeded(11):
        assert torch.equal(torch.rand(2), inside)


@pytest.mark.parametrize("make", FAMILIES)
def test_tied_weights_survive_a_folder(make, tmp_path):
    model = make()
    save_causal_lm(PPOModel(model).base_model, tiny_tokenizer(), tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert loaded.num_parameters() == model.num_parameters()
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_the_tokenizer_is_saved_beside_the_model(tmp_path):
    save_causal_lm(tiny_llama(), tiny_tokenizer(), tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.get_vocab() == tiny_tokenizer().get_vocab()
    assert loaded.chat_template == tiny_tokenizer().chat_template


def test_a_model_object_passes_through():
    model = tiny_llama()
    assert load_causal_lm(model) is model
    assert load_causal_lm(model, device="cpu") is model


def test_a_folder_loads_in_the_asked_precision(tmp_path):
    save_causal_lm(tiny_llama(), tiny_tokenizer(), tmp_path)
    assert load_causal_lm(tmp_path).dtype == torch.float32
    loaded = load_causal_lm(str(tmp_path), dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    assert not loaded.training


@pytest.mark.parametrize("load", [load_causal_lm, load_tokenizer])
@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "data/models/none"])
def test_a_missing_folder_is_not_looked_for_on_the_hub(load, name):
    with pytest.raises(ConfigError, match="no folder"):
        load(name)


def test_a_folder_without_a_model_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_causal_lm(tmp_path)
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_tokenizer(tmp_path)


def test_an_unknown_hub_name_says_so(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("owner/none is not a model identifier\nlong advice")

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", refuse)
    with pytest.raises(ConfigError, match="'owner/none': owner/none is not a model identifier Expected"):
        load_causal_lm("owner/none")


def test_missing_or_damaged_weights_are_never_replaced_by_random_ones(tmp_path):
    save_causal_lm(tiny_llama(), tiny_tokenizer(), tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 weights are missing.*up_proj"):
        load_causal_lm(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        load_causal_lm(tmp_path)


def test_a_tokenizer_without_padding_pads_with_its_end(tmp_path):
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).pad_token == "<|end|>"


def test_devices_are_checked_before_anything_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="found 0 CUDA devices"):
        choose_device("cuda")
    with pytest.raises(ConfigError, match="not a device"):
        choose_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(None) == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="found 2 CUDA devices"):
        choose_device("cuda:2")
