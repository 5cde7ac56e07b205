"""Padding and joining: masks from lengths, rows that stay themselves."""

import pytest
import torch

from rlcore.batches import Sequences, join, left_pad, right_pad
from rlcore.errors import DataError


def test_left_padding_ends_rows_in_the_last_column():
    ids, mask = left_pad([[5, 6, 7], [8]], pad_id=9)
    assert ids.tolist() == [[5, 6, 7], [9, 9, 8]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert ids.dtype == mask.dtype == torch.int64


def test_right_padding_starts_rows_in_the_first_column():
    ids, mask = right_pad([[5, 6, 7], [8]], pad_id=9)
    assert ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize("pad", [left_pad, right_pad])
@pytest.mark.parametrize(("rows", "shape"), [([], (0, 0)), ([[]], (1, 0)), ([[], [1]], (2, 1))])
def test_empty_rows_keep_two_dimensions(pad, rows, shape):
    ids, mask = pad(rows, 0)
    assert ids.shape == mask.shape == shape


def test_joined_rows_meet_in_the_same_column():
    sequences = join([[5, 6], [7]], [[1], [2, 3]], pad_id=0)
    assert sequences.input_ids.tolist() == [[5, 6, 1, 0], [0, 7, 2, 3]]
    assert sequences.attention_mask.tolist() == [[1, 1, 1, 0], [0, 1, 1, 1]]
    assert sequences.response_mask.tolist() == [[True, False], [True, True]]
    assert sequences.prompt_length == 2
    assert sequences.response_ids.tolist() == [[1, 0], [2, 3]]
    assert len(sequences) == 2


def test_an_end_token_equal_to_the_padding_token_stays_real():
    # end = pad = 2: the end of the first response counts, the padding behind it does not
    sequences = join([[5], [5]], [[7, 2], [7, 8, 2]], pad_id=2)
    assert sequences.response_mask.tolist() == [[True, True, False], [True, True, True]]


def test_a_padding_id_inside_a_row_stays_real():
    sequences = join([[0, 5]], [[0, 0]], pad_id=0)
    assert sequences.attention_mask.tolist() == [[1, 1, 1, 1]]


def test_selected_rows_lose_the_columns_that_only_other_prompts_need():
    sequences = join([[1, 2, 3, 4], [5], [6, 7]], [[8, 9], [8], [8]], pad_id=0)
    chosen = sequences.select(torch.tensor([2, 1]))
    assert chosen.input_ids.tolist() == [[6, 7, 8, 0], [0, 5, 8, 0]]
    assert chosen.attention_mask.tolist() == [[1, 1, 1, 0], [0, 1, 1, 0]]
    # T stays, so that [B, T] tensors of the batch take the same index
    assert chosen.response_mask.tolist() == sequences.response_mask[[2, 1]].tolist()
    assert chosen.prompt_length == 2


@pytest.mark.parametrize("index", [slice(0, 2), [0, 1], torch.tensor([0, 1]), torch.tensor([True, True, False])])
def test_rows_are_selected_by_any_index(index):
    sequences = join([[1, 2], [5], [6, 7]], [[8], [9], [8]], pad_id=0)
    assert sequences.select(index).input_ids.tolist() == [[1, 2, 8], [0, 5, 9]]


def test_moving_keeps_everything():
    sequences = join([[1, 2], [5]], [[8], [9]], pad_id=0)
    moved = sequences.to("cpu")
    assert isinstance(moved, Sequences)
    assert torch.equal(moved.input_ids, sequences.input_ids)


def test_a_count_that_differs_is_named():
    with pytest.raises(DataError, match="2 prompts and 1 responses"):
        join([[1], [2]], [[3]], pad_id=0)


def test_an_empty_prompt_is_named_by_its_row():
    with pytest.raises(DataError, match="Row 1"):
        join([[1], []], [[3], [4]], pad_id=0)
