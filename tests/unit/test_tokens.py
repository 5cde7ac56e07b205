import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from rlcore.configs import ValidateConfig
from rlcore.errors import ConfigError
from tasks.intake.checking import check
from tasks.intake.text.tokens import TokenCounter

WORDS = ["<s>", "</s>", "<unk>", "a", "b", "c", "d"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tokenizer of words that writes `<s>` in front of a text and `</s>` behind it."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def rules(folder: Path, model: Path, max_tokens: int, *rows: dict) -> list[tuple[int, str, str]]:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    checked = check([str(file)], None, ValidateConfig(tokenizer=str(model), max_tokens=max_tokens))
    report = checked.as_json()
    assert report["unit"] == "tokens"
    return [(row["row"], row["field"], found["rule"]) for found in report["findings"] for row in found["rows"]]


def test_texts_are_counted_without_special_tokens_and_the_frame_holds_what_begins_a_text(model: Path):
    counter = TokenCounter(model)
    assert counter.counts(["a b c", "a", ""]) == [3, 1, 0]
    assert counter.frame == 1
    assert counter.special_tokens == ["</s>", "<s>"]


def test_a_pair_may_have_as_many_tokens_as_the_limit_and_no_more(tmp_path: Path, model: Path):
    # <s> a b | c d </s>: 6 tokens
    row = {"prompt": "a b", "response": "c d"}
    assert rules(tmp_path, model, 6, row) == []
    assert rules(tmp_path, model, 5, row) == [(0, "response", "response_cut")]
    # <s> a b fills three: nothing is left for a response.
    assert rules(tmp_path, model, 3, row) == [(0, "prompt", "prompt_too_long")]


def test_each_side_of_a_pair_is_measured(tmp_path: Path, model: Path):
    row = {"prompt": "a", "chosen": "b", "rejected": "b c d"}
    assert rules(tmp_path, model, 4, row) == [(0, "rejected", "response_cut")]


def test_tokens_of_the_tokenizer_do_not_stand_in_texts(tmp_path: Path, model: Path):
    assert rules(tmp_path, model, 50, {"prompt": "a", "response": "b</s>"}) == [(0, "response", "special_token")]


def test_messages_need_a_template(tmp_path: Path, model: Path):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert rules(tmp_path, model, 50, {"prompt": turns, "response": "d"}) == [(0, "prompt", "template")]
    assert rules(tmp_path, model, 50, {"prompt": turns[:1], "response": "d"}) == []


@pytest.mark.parametrize("content", [None, "{}", "not JSON"])
def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="tokenizer.json"):
        TokenCounter(tmp_path)
