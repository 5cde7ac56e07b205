"""The parts of a rollout that are plain arithmetic: prompts in their order, rectangles from rows, figures."""

import logging
import math

import pytest

from rlcore.batches import join
from rlcore.errors import DataError
from rlcore.formatting import ChatFormat
from rlcore.rollout import choose_prompts, encode_prompts, rollout_metrics, sample_rows
from rlcore.rollout.figures import validation_metrics
from rlcore.streams import permutation, stream_seed
from tests.support.rollouts import measured, rollout
from tests.support.tiny import tiny_tokenizer


def test_prompts_are_taken_from_one_permutation_after_another():
    # 5 prompts, batches of 2: five batches take each prompt exactly twice
    taken = [index for iteration in range(5) for index in choose_prompts(5, 2, iteration, seed=3)]
    assert sorted(taken[:5]) == sorted(taken[5:]) == [0, 1, 2, 3, 4]
    assert taken[:5] != taken[5:]


def test_a_batch_larger_than_the_data_repeats_it():
    assert sorted(choose_prompts(3, 7, 0, seed=0)[:6]) == [0, 0, 1, 1, 2, 2]


def test_each_key_names_its_own_stream():
    keys = [(seed, purpose, row) for seed in range(3) for purpose in ("rollout", "validation") for row in range(50)]
    assert len({stream_seed(*key) for key in keys}) == len(keys)
    assert stream_seed(0, "rollout", 1) == stream_seed(0, "rollout", 1)


def test_permutations_are_permutations_and_differ_by_key():
    orders = [permutation(20, 0, "update", epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders[0] != orders[1] != orders[2]


# Prompts.


def test_prompts_are_texts_messages_or_rows_whose_other_columns_are_kept():
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "2"},
    ]
    chat = ChatFormat(tiny_tokenizer())
    rows = encode_prompts(["2", {"prompt": "2", "answer": 4}, {"prompt": messages}], chat, 100)
    assert [row.text for row in rows] == ["2", "2", "2"]
    assert [row.metadata for row in rows] == [{}, {"answer": 4}, {}]
    assert rows[0].ids == rows[1].ids == chat.encode_prompt("2")
    assert rows[2].ids == chat.encode_prompt(messages)
    assert rows[2].prompt == messages


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "Found 0 prompts"),
        ("one text", "Found a str, 'one text', expected a list of prompts"),
        ({"prompt": ["a", "b"]}, "Found a dict"),
        (["fine", None], "Prompt 1: found None, expected a text or a mapping"),
        (["fine", 7], "Prompt 1: found 7"),
        (["fine", "  "], "Prompt 1: found '  ', expected a text that is not empty"),
        ([{"text": "no prompt"}], "Prompt 0: found None"),
        ([{"prompt": []}], r"Prompt 0: found \[\]"),
        ([{"prompt": [{"role": "user"}]}], "Prompt 0: found .*'role': 'user'"),
    ],
)
def test_prompts_that_cannot_be_answered_are_refused_by_number(rows, message):
    with pytest.raises(DataError, match=message):
        encode_prompts(rows, ChatFormat(tiny_tokenizer()), 100)


def test_a_prompt_that_cannot_be_encoded_is_named():
    with pytest.raises(DataError, match=r"Prompt 1: Found the lone surrogate U\+DE00 at position 0"):
        encode_prompts(["fine", {"prompt": "\ude00"}], ChatFormat(tiny_tokenizer()), 100)


def test_a_long_prompt_loses_its_beginning_and_that_is_said(caplog):
    chat = ChatFormat(tiny_tokenizer())
    whole = chat.encode_prompt("What is 1 plus 1? " * 9)
    with caplog.at_level(logging.WARNING):
        short, cut = encode_prompts(["1", "What is 1 plus 1? " * 9], chat, 20)
    assert cut.ids == chat.cut_prompt(whole, 20) != whole
    assert len(short.ids) < 20
    assert "1 of 2 prompts have more than the 20 tokens" in caplog.text
    assert "prompt 1 is the first" in caplog.text


# Rows as rectangles.


def test_rows_become_rectangles_and_padding_is_nothing():
    batch = rollout(measured([-1.0, -2.0, -3.0], [-1.5, -2.0, -4.0], score=2.0), measured([-0.5], [-0.25], score=-1.0))
    assert batch.sequences.input_ids.tolist() == [[0, 4, 5, 6, 7], [4, 4, 5, 0, 0]]
    assert batch.sequences.attention_mask.tolist() == [[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch.response_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.old_logprobs.tolist() == [[-1.0, -2.0, -3.0], [-0.5, 0.0, 0.0]]
    assert batch.kl.tolist() == [[0.5, 0.0, 1.0], [-0.25, 0.0, 0.0]]
    assert (batch.scores.tolist(), batch.group_ids.tolist(), batch.token_count, len(batch)) == (
        [2.0, -1.0],
        [0, 1],
        4,
        2,
    )


def test_tokens_that_the_policy_did_not_write_have_length_but_no_kl():
    # 5 tokens, two of them the result of a tool
    marks = [True, True, False, False, True]
    batch = rollout(measured([-1.0, -1.0, 0.0, 0.0, -1.0], [-2.0, -1.0, 0.0, 0.0, -1.0], sampled=marks))
    assert batch.response_mask.tolist() == [marks]
    assert batch.sequences.attention_mask.tolist() == [[1] * 6]
    assert batch.sequences.response_lengths.tolist() == [5]
    figures = rollout_metrics(batch)
    # lengths count all 5 tokens, means the 3 sampled ones: KL 1 / 3
    assert figures["response/length_mean"] == 5.0
    assert figures["kl/ref_token_mean"] == pytest.approx(1 / 3)
    assert figures["throughput/tokens_per_s"] == pytest.approx(3 / 0.5)


def test_marks_have_to_fit_their_response():
    with pytest.raises(DataError, match=r"\[2\] marks for responses of \[3\] tokens"):
        join([[1]], [[5, 6, 7]], 0, [[True, False]])


# Figures.


def test_the_log_ratio_may_be_negative_where_the_other_estimate_is_not():
    # k1 = -0.3, 0, -2; k3 = exp(0.3) - 1 - 0.3, 0, exp(2) - 1 - 2. Padding of the second row counts in neither.
    batch = rollout(measured([-1.2, -0.7, -3.0], [-0.9, -0.7, -1.0]), measured([], []))
    figures = rollout_metrics(batch)
    assert figures["kl/ref_token_mean"] == pytest.approx(-0.766667, abs=1e-6)
    assert figures["kl/ref_k3_token_mean"] == pytest.approx(1.479638, abs=1e-6)
    assert figures["kl/ref_sequence_mean"] == pytest.approx(-2.3 / 2)


def test_a_log_ratio_of_forty_nats_overflows_nothing():
    figures = rollout_metrics(rollout(measured([-50.0], [-10.0]), measured([-1.0], [-90.0])))
    assert math.isfinite(figures["kl/ref_k3_token_mean"])
    assert figures["kl/ref_token_mean"] == pytest.approx((-40 + 89) / 2)


def test_figures_of_scores_leave_missing_ones_out():
    rows = [
        measured([-1.0], [-1.0], score=score, reward_parts={"short": part}) for score, part in ((1.0, 4.0), (3.0, 0.0))
    ]
    missing = measured([-1.0], [-1.0], score=math.nan, reward_parts={"short": math.nan}, terminated=False)
    figures = rollout_metrics(rollout(*rows, missing))
    # mean 2, population deviation 1; unweighted part (4 + 0) / 2; 2 of 3 ended by themselves; one text
    assert (figures["reward/score_mean"], figures["reward/score_std"], figures["reward/short_mean"]) == (2.0, 1.0, 2.0)
    assert figures["response/eos_fraction"] == pytest.approx(2 / 3)
    assert figures["response/distinct_count"] == 1.0
    assert (figures["time/sampling_s"], figures["time/reference_s"], figures["time/reward_s"]) == (0.5, 0.25, 0.125)


def test_an_evaluation_is_worth_its_score_less_the_kl():
    batch = rollout(measured([-1.0, -1.0], [-2.0, -1.5], score=3.0))
    metrics = validation_metrics(batch, kl_coef=0.2)
    # 1 + 0.5 nats in the response: 3 - 0.2 * 1.5
    assert metrics["validation/ref_sequence_mean"] == pytest.approx(1.5)
    assert metrics["validation/objective"] == pytest.approx(2.7)
    (row,) = sample_rows(batch)
    assert row == {"prompt": "p0", "response": "2 tokens", "finished": True, "score": 3.0, "kl": 1.5, "row": 0}
