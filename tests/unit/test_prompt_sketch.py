"""Sketches of sets of prompts against the sets themselves."""

import random

import pytest

from tasks.intake.reporting.prompt_sketch import (
    Estimate,
    PromptSketch,
    distinct_count,
    from_hex,
    to_hex,
    unseen_share,
)

DEVIATIONS = 4


def hashes_of(prompts, size=2048):
    sketch = PromptSketch(size)
    sketch.add(prompts)
    return sketch.hashes()


def prompts(start, end):
    return [f"prompt {number}" for number in range(start, end)]


def test_sets_of_fewer_than_k_prompts_are_compared_exactly():
    # 5 of 10 are new: 5..9 are known.
    assert unseen_share(hashes_of(prompts(5, 15)), hashes_of(prompts(0, 10))) == Estimate(0.5, 0.0, 10)


def test_repetition_order_case_and_white_space_change_nothing():
    shuffled = random.Random(0).sample(prompts(0, 5000) * 2, 10_000)
    assert hashes_of([f" {prompt.upper()}\n" for prompt in shuffled]) == hashes_of(prompts(0, 5000))


def test_a_sketch_keeps_the_k_smallest_hashes():
    assert hashes_of(prompts(0, 3000), size=100) == hashes_of(prompts(0, 3000), size=3000)[:100]


@pytest.mark.parametrize("count", [50, 2047, 40_000])
def test_the_number_of_different_prompts_is_within_its_error(count):
    # The relative standard error is 1 / sqrt(k - 2) = 2.2 %; below k there is none.
    error = 0 if count < 2048 else DEVIATIONS * count / 2046**0.5
    assert distinct_count(hashes_of(prompts(0, count))) == pytest.approx(count, abs=error)


@pytest.mark.parametrize(
    ("new", "old", "share"),
    [
        ((10_000, 50_000), (0, 40_000), 0.25),
        ((0, 40_000), (0, 40_000), 0.0),
        ((0, 40_000), (40_000, 80_000), 1.0),
        ((0, 40_000), (0, 500), 0.9875),
        ((0, 500), (0, 40_000), 0.0),
        ((400, 1400), (0, 40_000), 0.0),
    ],
)
def test_the_share_of_new_prompts_of_large_sets_is_within_its_error(new, old, share):
    found = unseen_share(hashes_of(prompts(*new)), hashes_of(prompts(*old)))
    assert found.share == pytest.approx(share, abs=DEVIATIONS * found.error + 1e-12)
    assert found.error <= 0.0111  # at most 1 / (2 sqrt(2048))


def test_the_errors_of_many_estimates_are_as_large_as_they_say():
    # 100 pairs of sets of 400, half of them shared, sketched with k = 64.
    estimates = []
    for trial in range(100):
        first, second = ([f"{trial}/{prompt}" for prompt in prompts(start, start + 400)] for start in (0, 200))
        estimates.append(unseen_share(hashes_of(first, 64), hashes_of(second, 64), 64))
    deviation = (sum((found.share - 0.5) ** 2 for found in estimates) / 100) ** 0.5
    stated = sum(found.error for found in estimates) / 100
    assert deviation == pytest.approx(stated, rel=0.3)


def test_nothing_is_said_of_an_empty_set():
    assert unseen_share([], hashes_of(prompts(0, 10))) is None


def test_half_a_surrogate_pair_is_no_fault():
    assert len(hashes_of(["\ud800"])) == 1


def test_a_text_holds_all_hashes():
    hashes = [0, 1, 2**64 - 1]
    assert from_hex(to_hex(hashes)) == hashes
