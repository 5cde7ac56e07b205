"""Held-out prompts that stand in training data, by hand."""

from tasks.measuring.leaks import leak_shares
from tasks.records.artifacts import write_rows


def test_shares_count_distinct_prompts_as_they_are_and_normalised(tmp_path):
    held_out = [{"prompt": text} for text in ("2 + 3?", "2 + 3?", "Add 4  and 1.", "9 - 1?", "5 + 5?")]
    write_rows(tmp_path / "demonstrations.jsonl", [{"prompt": "2 + 3?"}, {"prompt": "1 + 1?"}])
    write_rows(tmp_path / "prompts.jsonl", [{"prompt": "ADD 4 and\n1."}])
    shares = leak_shares(held_out, [tmp_path / "demonstrations.jsonl", tmp_path / "prompts.jsonl"])
    # Of four distinct prompts one stands there to the letter, and one more in other case and white space.
    assert shares == {"data/leak_share_exact": 0.25, "data/leak_share": 0.5}


def test_other_operators_are_other_prompts(tmp_path):
    write_rows(tmp_path / "prompts.jsonl", [{"prompt": "2 - 3?"}])
    assert leak_shares([{"prompt": "2 + 3?"}], [tmp_path / "prompts.jsonl"])["data/leak_share"] == 0.0
