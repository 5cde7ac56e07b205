"""Every reference value of the oracle file, in float64, by every way through rlcore."""

import pytest

from tests.support.oracle_adapters import ADAPTERS
from tests.support.oracles import CASES, check

KINDS = 23


def test_every_kind_has_an_adapter_and_cases():
    assert {case["kind"] for case in CASES} == set(ADAPTERS)
    assert len(ADAPTERS) == KINDS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_oracle(case: dict):
    check(case)
