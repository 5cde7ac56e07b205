"""Stories cut into opening and continuation."""

import gzip
import json

import pytest

from rlcore.configs import DemoDataConfig
from tasks.demos import tinystories
from tasks.records.artifacts import read_rows


@pytest.fixture
def source(tmp_path):
    """A folder of stories: an empty one, a blank one, one word, two words, and one that can be cut."""
    stories = ["", " \n", "Once.", "Once upon.", "One day a girl named Lily went out. She smiled. Then it rained."]
    for name, key, texts in (("stories", "text", stories), ("rl_prompts", "prompt", ["A dog"])):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({key: text}) + "\n" for text in texts)
    return tmp_path


def test_a_story_of_fewer_than_two_words_is_skipped(source, tmp_path, monkeypatch):
    monkeypatch.setattr(tinystories, "_preferences", lambda config, prompts: [])
    tinystories.generate(DemoDataConfig(source=str(source), model_name="any"), tmp_path / "raw")
    prompts = [row["prompt"] for row in read_rows(tmp_path / "raw" / "prompts.jsonl")]
    assert prompts[:2] == ["A dog", "Once upon."]
    assert len(prompts) == 3
    (demonstration,) = read_rows(tmp_path / "raw" / "demonstrations.jsonl")
    assert demonstration["prompt"] + demonstration["response"] == "One day a girl named Lily went out. She smiled."
