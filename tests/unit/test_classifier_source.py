"""Any sequence classifier with one label scores responses as it would score each of them alone."""

import json

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
)

from rlcore.errors import CheckpointError, ConfigError, DataError
from rlcore.reward import ClassifierSource, RewardModelSource, reward_model_source, save_reward_file, save_reward_model
from rlcore.reward.pairs import encode
from tests.support.reward import ENCODER, PROMPTS, RESPONSES, SIZES, reward_model, tokenizer
from tests.support.tiny import tiny_llama

DECODER = SIZES | {"intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.2}
NO_SPECIAL = {"bos_token_id": None, "eos_token_id": None}
CLASSIFIERS = {
    "llama": lambda **more: LlamaForSequenceClassification(LlamaConfig(**DECODER, **NO_SPECIAL, **more)),
    "qwen2": lambda **more: Qwen2ForSequenceClassification(
        Qwen2Config(**DECODER, **NO_SPECIAL, num_key_value_heads=1, **more)
    ),
    "gpt2": lambda **more: GPT2ForSequenceClassification(
        GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.2, **more)
    ),
    "bert": lambda **more: BertForSequenceClassification(BertConfig(**ENCODER, **more)),
    "roberta": lambda **more: RobertaForSequenceClassification(
        RobertaConfig(**ENCODER | {"max_position_embeddings": 66} | more)
    ),
}
DECODERS = ["llama", "qwen2", "gpt2"]


@pytest.fixture
def save(tmp_path):
    def saved(name: str, num_labels: int = 1, **settings):
        torch.manual_seed(0)
        CLASSIFIERS[name](num_labels=num_labels, **settings).save_pretrained(tmp_path / "classifier")
        tokenizer().save_pretrained(tmp_path / "classifier")
        return tmp_path / "classifier"

    return saved


@torch.no_grad()
def alone(folder, source: ClassifierSource) -> list[float]:
    """What transformers says about each row by itself, with the padding token that the folder names."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rows = encode(source.chat, PROMPTS, RESPONSES, source.max_length)
    return [model(input_ids=torch.tensor([row])).logits.item() for row in rows]


@pytest.mark.parametrize("pad", ["none", "end", "own"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_scores_each_row_as_it_would_alone(save, name, pad):
    end_id, own_id = tokenizer().eos_token_id, tokenizer().pad_token_id
    folder = save(name, pad_token_id={"none": None, "end": end_id, "own": own_id}[pad])
    source = ClassifierSource(folder, device="cpu")
    found = source(PROMPTS, RESPONSES)
    assert found == pytest.approx(alone(folder, source), abs=1e-5)
    assert found == pytest.approx(ClassifierSource(folder, batch_size=1, device="cpu")(PROMPTS, RESPONSES), abs=1e-5)
    assert found == pytest.approx(source(PROMPTS[::-1], RESPONSES[::-1])[::-1], abs=1e-5)
    assert len({round(score, 3) for score in found}) == 3


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_an_encoder_scores_each_row_as_it_would_alone(save, name):
    # the padding of RoBERTa's positions is that of its tokenizer, as transformers counts them from the ids
    folder = save(name, pad_token_id=tokenizer().pad_token_id)
    source = ClassifierSource(folder, device="cpu")
    assert source(PROMPTS, RESPONSES) == pytest.approx(alone(folder, source), abs=1e-5)


def test_a_row_of_padding_tokens_alone_is_scored_at_its_first_token(save):
    end_id = tokenizer().eos_token_id
    source = ClassifierSource(save("llama", pad_token_id=end_id), device="cpu")
    ids, mask = torch.tensor([[end_id, end_id], [7, end_id]]), torch.ones(2, 2, dtype=torch.int64)
    assert source._pooled(ids, mask).int().tolist() == [[1, 0], [1, 0]]


def test_without_a_padding_token_tokenizer_and_model_get_one(save):
    folder = save("gpt2", pad_token_id=None)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("pad_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    source = ClassifierSource(folder, device="cpu")
    end_id = source.chat.end_id
    assert (source.chat.tokenizer.pad_token_id, source.model.config.pad_token_id) == (end_id, end_id)
    assert source.model.get_input_embeddings().num_embeddings == 300
    one_by_one = ClassifierSource(folder, batch_size=1, device="cpu")
    assert source(PROMPTS, RESPONSES) == pytest.approx(one_by_one(PROMPTS, RESPONSES), abs=1e-5)
    assert source(PROMPTS, RESPONSES) == pytest.approx(alone(folder, source), abs=1e-5)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_several_labels_are_refused_with_both_shapes(save, name, count):
    with pytest.raises(ConfigError, match=rf"\({count}, 16\), expected num_labels=1, shape \(1, 16\)"):
        ClassifierSource(save(name, count, pad_token_id=0))


def test_a_language_model_is_no_classifier(tmp_path):
    tiny_llama(vocab_size=300).save_pretrained(tmp_path / "lm")
    tokenizer().save_pretrained(tmp_path / "lm")
    with pytest.raises(CheckpointError, match="score.weight"):
        ClassifierSource(tmp_path / "lm")


def test_an_encoder_decoder_is_refused(tmp_path):
    settings = {"vocab_size": 50, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "num_labels": 1}
    T5ForSequenceClassification(T5Config(**settings)).save_pretrained(tmp_path / "t5")
    with pytest.raises(ConfigError, match="encoder-decoder"):
        ClassifierSource(tmp_path / "t5")


def test_a_folder_that_is_missing_or_empty_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="Expected a model folder or a hub name"):
            ClassifierSource(folder)


def test_scoring_is_without_dropout_and_gradients(save):
    source = ClassifierSource(save("gpt2", pad_token_id=0, attn_pdrop=0.5), device="cpu")
    source.model.train()
    assert source(PROMPTS, RESPONSES) == source(PROMPTS, RESPONSES)
    assert source.model.training


def test_rows_that_do_not_fit_are_refused(save):
    source = ClassifierSource(save("llama", pad_token_id=0), device="cpu")
    with pytest.raises(DataError, match="2 prompts, 1 responses"):
        source(["a", "b"], ["c"])
    with pytest.raises(DataError, match=r"Row 0: Found .*3"):
        source(["a"], [3])
    with pytest.raises(ConfigError, match="batch_size=0"):
        ClassifierSource("anything", batch_size=0)
    assert source([], []) == []
    assert len(source(["What is this? " * 50], ["5"])) == 1


def test_what_lies_there_decides_about_the_source(save, tmp_path):
    save_reward_model(reward_model(), tokenizer(), tmp_path / "folder")
    save_reward_file(reward_model(), tokenizer(), tmp_path / "reward_model.pt")
    folder, file = (reward_model_source(tmp_path / name, device="cpu") for name in ("folder", "reward_model.pt"))
    assert isinstance(folder, RewardModelSource)
    assert isinstance(file, RewardModelSource)
    assert folder(PROMPTS, RESPONSES) == pytest.approx(file(PROMPTS, RESPONSES), abs=1e-6)
    assert isinstance(reward_model_source(save("bert", pad_token_id=0), 8, "cpu"), ClassifierSource)
