"""Arms are timed only where they compute the same."""

import math

import pytest

from benchmarks.parity import differences, exchange


def test_equal_facts_have_no_difference():
    facts = {"ids/greedy": [[3, 4], [5]], "loss/first_step": 0.5, "logprobs/sampled": [[-1.0], []]}
    assert differences(facts, {**facts, "loss/first_step": 0.50009, "logprobs/sampled": [[-1.000009], []]}) == []


@pytest.mark.parametrize(
    ("theirs", "fault"),
    [
        ({"loss/first_step": 0.6002}, "loss/first_step: differs by 0.1, at most 0.0001 expected"),
        ({"loss/first_step": math.nan}, "loss/first_step: differs by nan, at most 0.0001 expected"),
        ({}, "loss/first_step: the peer has none"),
        ({"loss/first_step": [0.5, 0.5]}, "loss/first_step: 1 numbers and 2"),
        ({"loss/first_step": 0.5002, "ids/greedy": [[3]]}, "ids/greedy: ours has none"),
    ],
)
def test_a_difference_is_named(theirs: dict, fault: str):
    assert differences({"loss/first_step": 0.5002}, theirs) == [fault]


def test_other_tokens_are_a_difference():
    assert differences({"ids/greedy": [[3, 4]]}, {"ids/greedy": [[3, 5]]}) == [
        "ids/greedy: differs by 1, at most 0 expected"
    ]


def test_inputs_alone_prove_nothing():
    assert differences({"input/rows": [[1]]}, {"input/rows": [[2]]}) == ["nothing was compared"]


class Side:
    def __init__(self, first: dict, then: dict):
        self.said, self.heard = [first, then], []

    def facts(self, other: dict | None = None) -> dict:
        self.heard.append(other)
        return self.said.pop(0)


def test_each_side_knows_what_the_other_computed():
    ours, peer = Side({"input/sampled": [7]}, {"loss/x": 1.0}), Side({"loss/x": 1.0, "input/head": [2]}, {})
    assert exchange(ours, peer) == []
    assert ours.heard == [None, {"loss/x": 1.0, "input/head": [2]}]
    assert peer.heard == [{"input/sampled": [7]}]
