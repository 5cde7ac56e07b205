"""Answers of a model do not depend on how many the device takes at once."""

import pytest
import torch

from rlcore.errors import DeviceMemoryError
from rlcore.sampling import SamplingParams, generate
from tasks.measuring import answers
from tasks.measuring.answers import Speaker
from tests.support.workspace import save_model

PROMPTS = ["What is 2 plus 2?", "Add 3 and 4.", "What?", "1 plus 1?", "Add 9 and 9 and 9."]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_model(folder, seed=0)
    return Speaker(folder)


def with_memory_for(rows, function, sizes):
    """The function on a device that takes so many rows at once; the sizes that it was asked for are noted."""

    def limited(first, second, *arguments, **settings):
        # generate(model, prompts, …), join(prompts, responses, …)
        sizes.append(len(second))
        if len(second) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return function(first, second, *arguments, **settings)

    return limited


def answered(speaker):
    return speaker.answer(PROMPTS, SamplingParams(max_new_tokens=6), seeds=range(5))


def test_a_device_without_memory_samples_the_same_answers_in_smaller_parts(speaker, monkeypatch):
    whole, sizes = answered(speaker), []
    monkeypatch.setattr(answers, "generate", with_memory_for(2, generate, sizes))
    parts = answered(speaker)
    assert sizes == [5, 2, 2, 1]
    assert (parts.prompt_ids, parts.response_ids, parts.finished) == (
        whole.prompt_ids,
        whole.response_ids,
        whole.finished,
    )
    torch.testing.assert_close(parts.logprobs, whole.logprobs)


def test_a_device_without_memory_reads_the_same_answers_in_smaller_parts(speaker, monkeypatch):
    sampled, sizes = answered(speaker), []
    monkeypatch.setattr(answers, "join", with_memory_for(3, answers.join, sizes))
    read = speaker.logprobs_of(sampled.prompt_ids, sampled.response_ids, 1.0)
    assert sizes == [5, 2, 2, 1]
    torch.testing.assert_close(read, sampled.logprobs)


def test_a_device_without_memory_for_one_row_is_an_error_that_says_what_to_do(speaker, monkeypatch):
    monkeypatch.setattr(answers, "generate", with_memory_for(0, generate, []))
    with pytest.raises(DeviceMemoryError, match="sampling of a single row. Lower"):
        answered(speaker)
