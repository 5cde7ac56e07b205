import math

import numpy
import pytest

from tasks.measuring import measures
from tasks.measuring.measures import GroupBootstrap


def test_the_bootstrap_resamples_whole_groups():
    # Resamples of two groups are AA, AB, BA, BB: the mean is 1, .75 (three of four values), .75 or 0.
    # Each extreme has probability 1/4, far more than 2.5 %.
    groups = GroupBootstrap(["a", "a", "a", "b"], 1000, seed=0)
    assert groups.interval([1, 1, 1, 0]) == (0.0, 1.0)


def test_one_group_says_nothing_about_others():
    assert GroupBootstrap(["a"] * 4, 100, seed=0).interval([0, 1, 1, 0]) == (0.5, 0.5)


def test_with_groups_of_one_the_interval_is_that_of_the_mean():
    # 400 values, half of them 1: standard error .5 / 20 = .025, interval .5 +- 1.96 * .025.
    # The ends wobble by about .002 with 2000 resamples.
    low, high = GroupBootstrap([str(row) for row in range(400)], 2000, seed=0).interval([0.0, 1.0] * 200)
    assert low == pytest.approx(0.451, abs=0.006)
    assert high == pytest.approx(0.549, abs=0.006)


def test_the_standard_error_is_the_deviation_of_the_mean_over_groups():
    # 400 values, half of them 1, in 100 groups of four equal members: .5 / 10
    values = numpy.repeat([0.0, 1.0] * 50, 4)
    groups = GroupBootstrap([str(row // 4) for row in range(400)], 2000, seed=0)
    assert groups.standard_error(values) == pytest.approx(0.05, abs=0.004)
    assert GroupBootstrap(["a"] * 400, 100, seed=0).standard_error(values) == 0.0


def test_groups_widen_the_interval():
    # The same 400 values in 100 groups of four equal members: standard error .5 / 10, in steps of .01
    values = numpy.repeat([0.0, 1.0] * 50, 4)
    low, high = GroupBootstrap([str(row // 4) for row in range(400)], 2000, seed=0).interval(values)
    assert high - low == pytest.approx(2 * 1.96 * 0.05, abs=0.02)


def test_the_interval_depends_on_the_seed_alone():
    groups, values = ["a", "b", "c", "d"], [0.1, 0.4, 0.2, 0.9]
    first, again, other = (GroupBootstrap(groups, 100, seed).interval(values) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_value_that_is_not_a_number_spoils_the_interval():
    assert all(math.isnan(end) for end in GroupBootstrap(["a", "b"], 100, 0).interval([1.0, math.nan]))


def test_distinct_n_counts_words_within_texts():
    # words a b a b c: 3 distinct of 5; pairs ab ba ab of the first text and none of the second: 2 of 3
    assert measures.distinct_n(["a b a b", "c"], 1) == pytest.approx(3 / 5)
    assert measures.distinct_n(["a b a b", "c"], 2) == pytest.approx(2 / 3)
    assert math.isnan(measures.distinct_n(["a", ""], 2))


def test_repetition_lowers_distinct_n():
    assert measures.distinct_n(["happy happy happy happy"], 2) == pytest.approx(1 / 3)


def test_compare_counts_ties_apart():
    assert measures.compare([1, 0, 1, 0.5], [0, 1, 1, 0.25]) == {"win": 0.5, "lose": 0.25, "tie": 0.25}


def test_perplexity_weighs_tokens_not_texts():
    # Three tokens of probability 1/2 and one of 1/16: mean nats (3 ln 2 + 4 ln 2) / 4 = 7/4 ln 2
    texts = [[math.log(0.5)] * 3, [math.log(1 / 16)]]
    assert measures.perplexity(texts) == pytest.approx(2 ** (7 / 4))
    assert math.isnan(measures.perplexity([[], []]))


def test_smoothing_is_centred_and_shorter_at_the_ends():
    # (1+2)/2, (1+2+6)/3, (2+6+4)/3, (6+4)/2
    assert measures.smoothed([1.0, 2.0, 6.0, 4.0]) == [1.5, 3.0, 4.0, 5.0]
    assert measures.smoothed([3.0]) == [3.0]


def test_the_mean_of_nothing_is_not_zero():
    assert math.isnan(measures.mean([]))
