"""The parts of a rollout that are plain arithmetic."""

import pytest

from rlcore.errors import DataError
from rlcore.rollout import EncodedPrompt, choose_prompts, score_responses
from rlcore.streams import permutation, stream_seed


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


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (["good", 1.0], "judge, response 0, returned 'good', expected a finite number"),
        ([1.0, None], "judge, response 1, returned None, expected a finite number"),
        ([1.0, float("inf")], "judge, response 1, returned inf, expected a finite number"),
        ([1.0], "judge returned 1 scores for 2 responses"),
        ("12", "judge returned '12', expected a list of 2 numbers"),
    ],
)
def test_scores_that_are_no_numbers_are_refused_by_source_and_row(returned, message):
    def judge(prompts, responses, metadata=None):
        return returned

    with pytest.raises(DataError, match=message):
        score_responses(judge, [EncodedPrompt("p", [1], {})] * 2, ["a", "b"])
