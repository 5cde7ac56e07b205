"""Preference pairs as tokens, and the log-probabilities and settings of preference training."""

import logging
import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from rlcore.configs import DPOConfig
from rlcore.dpo import PreferenceDataset
from rlcore.dpo.loss import pair_loss, response_sums
from rlcore.dpo.run import epoch_steps
from rlcore.errors import ConfigError, DataError
from tests.support.tiny import VOCAB_SIZE, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_qwen2, tiny_tokenizer

PAD, END, BEGIN = 0, 1, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def letter_tokenizer(*, merges: tuple[tuple[str, str], ...] = (), begin: bool = False) -> PreTrainedTokenizerFast:
    """One token a letter, `a` is 3; on request some merges, and `<b>` in front of a text."""
    tokens = ["<p>", "<e>", "<b>", *LETTERS, *(left + right for left, right in merges)]
    backend = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, list(merges)))
    if begin:
        backend.post_processor = processors.TemplateProcessing(single="<b> $A", special_tokens=[("<b>", BEGIN)])
    special = {"pad_token": "<p>", "eos_token": "<e>", **({"bos_token": "<b>"} if begin else {})}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def ids(text: str) -> list[int]:
    return [3 + LETTERS.index(letter) for letter in text]


def one_pair(prompt: Any, chosen: Any, rejected: Any, **settings: Any) -> tuple[list[int], list[int], list[int]]:
    """Tokens of prompt, chosen and rejected response of a dataset with one pair."""
    tokenizer = settings.pop("tokenizer", letter_tokenizer())
    item = PreferenceDataset([prompt], [chosen], [rejected], tokenizer, **settings)[0]
    start = item["prompt_length"]
    assert item["chosen_input_ids"][:start].tolist() == item["prompt_input_ids"].tolist()
    assert item["rejected_input_ids"][:start].tolist() == item["prompt_input_ids"].tolist()
    sides = (item[f"{side}_input_ids"][start:].tolist() for side in ("chosen", "rejected"))
    return item["prompt_input_ids"].tolist(), *sides


def test_no_token_spans_the_border_even_where_the_texts_would_merge():
    # "x y" is one token of the joined text
    tokenizer = letter_tokenizer(merges=(("x", " "), ("x ", "y")))
    joined, space = 3 + len(LETTERS) + 1, 3 + len(LETTERS)
    assert tokenizer("ax y")["input_ids"] == [*ids("a"), joined]
    assert one_pair("ax ", "y", "z", tokenizer=tokenizer) == ([*ids("a"), space], [*ids("y"), END], [*ids("z"), END])


@pytest.mark.parametrize(
    ("prompt", "response", "kept_prompt", "kept_response"),
    [
        ("abcdef", "xy", "abcdef", [*ids("xy"), END]),  # 6 + 3 <= 10: nothing is cut
        ("abcdef", "uvwxy", "bcdef", ids("uvwxy")),  # 6 + 6 > 10: 5 + 5, the end token is cut
        ("abc", "klmnopqrstu", "abc", ids("klmnopq")),  # 3 + 12 > 10: 3 + 7
        ("abcdefghijkl", "x", "efghijkl", [*ids("x"), END]),  # 12 + 2 > 10: the prompt may keep 8
    ],
)
def test_a_prompt_loses_its_beginning_and_only_as_much_as_it_must(prompt, response, kept_prompt, kept_response):
    found = one_pair(prompt, response, response, max_length=10, max_prompt_length=5)
    assert found == (ids(kept_prompt), kept_response, kept_response)


def test_both_responses_follow_the_prompt_that_the_longer_one_leaves():
    # 8 + 6 > 10: the prompt keeps 5, although 8 + 2 of the other response would fit
    found = one_pair("abcdefgh", "uvwxy", "z", max_length=10, max_prompt_length=5)
    assert found == (ids("defgh"), ids("uvwxy"), [*ids("z"), END])
    found = one_pair("abcdefgh", "z", "uvwxy", max_length=10, max_prompt_length=5)
    assert found == (ids("defgh"), [*ids("z"), END], ids("uvwxy"))


def test_the_begin_token_comes_once_and_survives_a_cut():
    tokenizer = letter_tokenizer(begin=True)
    found = one_pair("abcdef", "uvwxy", "z", tokenizer=tokenizer, max_length=10, max_prompt_length=5)
    assert found == ([BEGIN, *ids("cdef")], ids("uvwxy"), [*ids("z"), END])
    assert one_pair("ab", "x", "y", tokenizer=tokenizer)[0] == [BEGIN, *ids("ab")]


def test_a_response_ends_with_one_end_token_whoever_wrote_it():
    assert one_pair("ab", "x<e>", "y")[1:] == ([*ids("x"), END], [*ids("y"), END])


def test_an_item_has_the_documented_keys_and_no_padding():
    item = PreferenceDataset(["ab"], ["xyz"], ["z"], letter_tokenizer())[0]
    shapes = {name: tuple(value.shape) for name, value in item.items() if name != "prompt_length"}
    assert item["prompt_length"] == 2
    assert shapes == {
        "prompt_input_ids": (2,),
        "prompt_attention_mask": (2,),
        "chosen_input_ids": (6,),
        "chosen_attention_mask": (6,),
        "rejected_input_ids": (4,),
        "rejected_attention_mask": (4,),
    }
    assert all(item[name].all() for name in shapes if name.endswith("mask"))


def test_chat_messages_equal_the_text_they_hold():
    user, good, bad = (
        {"role": role, "content": text} for role, text in (("user", "a?"), ("assistant", "b"), ("assistant", "c"))
    )
    tokenizer = tiny_tokenizer()
    text = one_pair("a?", "b", "c", tokenizer=tokenizer)
    assert one_pair([user], [good], [bad], tokenizer=tokenizer) == text
    # the prompt repeated in front of the answers is not scored a second time
    assert one_pair([user], [user, good], [user, bad], tokenizer=tokenizer) == text


def test_a_row_of_the_wrong_form_is_named():
    user, good = {"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}
    cases = [
        ([user], [good], [user], "Row 1, rejected: the last message is .*user"),
        ([user], [{"role": "user", "content": "other"}, good], [good], "Row 1, chosen: the messages before"),
        ([good], "b", "c", "Row 1: Found the messages"),
        ([user], None, "c", "Row 1, chosen: found None"),
        ("  ", "b", "c", "Row 1, prompt: found '  '"),
    ]
    for prompt, chosen, rejected, message in cases:
        with pytest.raises(DataError, match=message):
            PreferenceDataset(["x", prompt], ["y", chosen], ["z", rejected], tiny_tokenizer())


def test_unequal_and_empty_lists_are_refused():
    with pytest.raises(DataError, match="4 prompts, 4 chosen and 1 rejected"):
        PreferenceDataset(["a"] * 4, ["x"] * 4, ["y"], letter_tokenizer())
    with pytest.raises(DataError, match="0 preference pairs"):
        PreferenceDataset([], [], [], letter_tokenizer())


@pytest.mark.parametrize(("max_length", "max_prompt_length"), [(8, 8), (8, 0), (4, 9)])
def test_lengths_without_room_for_a_response_are_refused(max_length: int, max_prompt_length: int):
    with pytest.raises(ConfigError, match="a response keeps a token"):
        PreferenceDataset(["a"], ["x"], ["y"], letter_tokenizer(), max_length, max_prompt_length)


def test_rows_that_teach_nothing_are_counted(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        dataset = PreferenceDataset(["a", "b", "c"], ["x", "", "zz"], ["y", "y", "zz"], letter_tokenizer())
    assert (len(dataset), dataset.dropped_rows, dataset.identical_rows) == (2, [1], [2])
    assert dataset.prompts == ["a", "c"]
    assert "Dropped 1 of 3 rows" in caplog.text
    assert "1 of 3 rows have the same tokens" in caplog.text
    # lengths with the end token: (2 + 3) / 2 both
    assert dataset.figures() == {
        "data/chosen_length_mean": 2.5,
        "data/rejected_length_mean": 2.5,
        "data/identical_fraction": 0.5,
        "data/dropped_count": 1.0,
    }


def test_a_dataset_without_a_trainable_row_is_an_error():
    with pytest.raises(DataError, match="no trainable tokens in 2 of 2 rows"):
        PreferenceDataset(["a", "b"], ["", "x"], ["y", ""], letter_tokenizer())


def test_the_hash_follows_tokens_and_order():
    def sha(chosen: list[str], rejected: list[str]) -> str:
        return PreferenceDataset(["a", "b"], chosen, rejected, letter_tokenizer()).sha256()

    hashes = {sha(["x", "y"], ["u", "v"]), sha(["y", "x"], ["u", "v"]), sha(["u", "v"], ["x", "y"])}
    assert len(hashes) == 3
    assert sha(["x", "y"], ["u", "v"]) in hashes


def test_a_batch_pads_with_the_given_id_and_masks_by_length():
    # id 0 is a real token here and stays in the mask; 50 fills
    dataset = PreferenceDataset(["ab", "c"], ["xyz", "x"], ["x", "xy"], letter_tokenizer())
    batch = dataset.batch([0, 1], pad_id=50)
    assert batch.input_ids.tolist() == [
        [*ids("abxyz"), END],
        [*ids("cx"), END, 50, 50, 50],
        [*ids("abx"), END, 50, 50],
        [*ids("cxy"), END, 50, 50],
    ]
    assert batch.prompt_lengths.tolist() == [2, 1, 2, 1]
    assert batch.response_mask.sum(dim=1).tolist() == [4, 2, 2, 3]
    assert dataset.length(0) == 6


def test_a_uniform_model_gives_each_response_token_the_log_of_the_vocabulary():
    model = tiny_llama(vocab_size=4, tie_word_embeddings=False)
    model.lm_head.weight.data.zero_()
    tokenizer = letter_tokenizer()
    batch = PreferenceDataset(["a"], ["x"], ["xyz"], tokenizer).batch([0], pad_id=0)
    batch = type(batch)(batch.input_ids % 4, batch.prompt_lengths, batch.response_ids % 4, batch.response_mask)
    # 2 and 4 response tokens, the end token included
    torch.testing.assert_close(response_sums(model, batch), torch.tensor([-2 * math.log(4), -4 * math.log(4)]))


@pytest.mark.parametrize("build", [tiny_llama, tiny_gpt2, tiny_qwen2, tiny_gemma2])
def test_padding_and_prompts_do_not_count(build):
    model = build()
    dataset = PreferenceDataset(["abcd", "c"], ["xyzuvw", "x"], ["x", "xy"], letter_tokenizer())
    batch = dataset.batch([0, 1], pad_id=PAD)
    expected = []
    for side in ("chosen", "rejected"):
        for index in range(2):
            item = dataset[index]
            tokens, start = item[f"{side}_input_ids"], item["prompt_length"]
            logprobs = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
            expected.append(sum(logprobs[t - 1, tokens[t]] for t in range(start, len(tokens))))
    torch.testing.assert_close(response_sums(model, batch), torch.stack(expected), rtol=1e-5, atol=1e-5)
    assert max(map(max, batch.input_ids.tolist())) < VOCAB_SIZE


def test_equal_policy_and_reference_lose_ln_2_and_still_pull_apart():
    model = tiny_llama()
    dataset = PreferenceDataset(["ab", "c"], ["xyz", "x"], ["x", "xy"], letter_tokenizer())
    batch = dataset.batch([0, 1], pad_id=PAD)
    with torch.no_grad():
        reference = response_sums(model, batch)
    loss, sums = pair_loss(model, batch, reference, 2, DPOConfig(model_name="none", beta=0.1))
    torch.testing.assert_close(loss, torch.tensor(math.log(2)), rtol=0, atol=1e-6)
    assert [sums[f"dpo/{name}"].item() for name in ("accuracy", "margin_mean")] == [0.0, 0.0]
    loss.backward()
    found = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    # the gradient is -beta / 2 for each chosen and +beta / 2 for each rejected log-probability, over 2 pairs
    (response_sums(model, batch) * torch.tensor([-0.05, -0.05, 0.05, 0.05]) / 2).sum().backward()
    for gradient, weight in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-6)
    assert max(gradient.abs().max() for gradient in found) > 1e-3


def test_label_smoothing_changes_the_loss_and_not_the_rewards(monkeypatch: pytest.MonkeyPatch):
    # logprobs -10 and -12 against -11 and -11.5: rewards .1 and -.05, h = .15; plain .620957, smoothed .635957
    monkeypatch.setattr("rlcore.dpo.loss.response_sums", lambda model, batch: torch.tensor([-10.0, -12.0]))
    for smoothing, expected in ((0.0, 0.620957), (0.1, 0.635957)):
        config = DPOConfig(model_name="none", beta=0.1, label_smoothing=smoothing)
        loss, sums = pair_loss(torch.nn.Module(), None, torch.tensor([-11.0, -11.5]), 1, config)
        assert loss.item() == pytest.approx(expected, abs=1e-6)
        assert sums["dpo/chosen_reward_mean"].item() == pytest.approx(0.1, abs=1e-6)
        assert sums["dpo/rejected_reward_mean"].item() == pytest.approx(-0.05, abs=1e-6)
        assert sums["dpo/margin_mean"].item() == pytest.approx(0.15, abs=1e-6)
        assert sums["dpo/accuracy"].item() == 1.0


def test_an_epoch_visits_each_pair_once_in_an_order_of_its_own():
    dataset = PreferenceDataset(["a"] * 10, ["x" * n for n in range(1, 11)], ["y"] * 10, letter_tokenizer())

    def steps(seed: int, epoch: int) -> list[list[list[int]]]:
        settings = DPOConfig(model_name="none", seed=seed, batch_size=2, gradient_accumulation_steps=2)
        return list(epoch_steps(dataset, settings, epoch))

    # 4 pairs to a step, in batches of 2, the shorter ones first; the last step has the other 2
    first = steps(seed=0, epoch=0)
    assert [[len(batch) for batch in step] for step in first] == [[2, 2], [2, 2], [2]]
    assert sorted(row for step in first for batch in step for row in batch) == list(range(10))
    for step in first:
        flat = [row for batch in step for row in batch]
        assert flat == sorted(flat)
    assert steps(seed=0, epoch=0) == first
    assert steps(seed=0, epoch=1) != first != steps(seed=1, epoch=0)


def test_settings_have_the_documented_defaults():
    documented = {
        "learning_rate": 1e-6,
        "batch_size": 8,
        "gradient_accumulation_steps": 2,
        "beta": 0.1,
        "label_smoothing": 0.0,
        "reference_free": False,
        "num_epochs": 1,
        "max_grad_norm": 1.0,
        "warmup_ratio": 0.1,
        "max_length": 512,
        "max_prompt_length": 256,
        "eval_every": 100,
        "save_every": 500,
        "device": None,
    }
    assert documented.items() <= DPOConfig(model_name="none").model_dump().items()


@pytest.mark.parametrize(
    "setting",
    [
        {"beta": 0.0},
        {"beta": -1.0},
        {"label_smoothing": 0.51},
        {"label_smoothing": -0.1},
        {"learning_rate": 0.0},
        {"warmup_ratio": 1.1},
        {"batch_size": 0},
        {"max_prompt_length": 512},
        {"unknown": 1},
    ],
)
def test_settings_out_of_range_are_refused(setting: dict[str, Any]):
    with pytest.raises(ValidationError):
        DPOConfig(model_name="none", **setting)
