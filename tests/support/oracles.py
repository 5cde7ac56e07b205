"""The oracle file: reference values that were computed without torch, and the rule by which they are compared.

RLCORE_ORACLES names another file of the same form.
"""

import json
import os
from pathlib import Path

import pytest
from torch import Tensor

from tests.support.oracle_adapters import ADAPTERS, Adapter, tensor

PATH = Path(os.environ.get("RLCORE_ORACLES", Path(__file__).parents[1] / "numerics/oracles.json"))
ORACLES = json.loads(PATH.read_text(encoding="utf-8"))
CASES: list[dict] = ORACLES["cases"]
TOLERANCE = ORACLES["default_tolerance"]["float64"]

NOT_OURS = {
    "shift_true_ddof1",  # the file takes either variance; ours is the population's
    "shift_false_ddof1",
    "wrong_mean_of_means",  # the value of a known bug
}


def check(case: dict) -> None:
    """Compare every way through rlcore with a case.

    Raises:
        AssertionError: a value differs, is missing, or an error was expected and did not come.
    """
    for adapter in ADAPTERS[case["kind"]]:
        _check(case, adapter)


def _check(case: dict, adapter: Adapter) -> None:
    expected = {name: value for name, value in case["expected"].items() if name not in NOT_OURS}
    if expected.get("equal", True) is None:
        del expected["equal"]  # either outcome will do, but no exception
    if expected.pop("raises", None) == "ValueError":
        with pytest.raises(ValueError):  # noqa: PT011 - each adapter's errors are pinned down in tests/unit
            adapter(case["inputs"], case["params"])
        return
    found = adapter(case["inputs"], case["params"])
    if expected.pop("finite", False) or expected.pop("finite_or_raises", False):
        assert all(tensor(value).isfinite().all() for value in found.values())
    missing = expected.keys() - found.keys()
    assert not missing, f"{adapter.__name__} does not compute {missing}"
    for name, value in expected.items():
        _compare(found[name], value, case.get("rtol", TOLERANCE), f"{case['id']}: {adapter.__name__}: {name}")


def _compare(found: object, expected: object, tolerance: float, name: str) -> None:
    """The rule of the file, element by element: |found - expected| <= tolerance * max(1, |expected|)."""
    if isinstance(expected, list):
        assert len(found) == len(expected), name
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            _compare(one, other, tolerance, f"{name}[{index}]")
    elif isinstance(expected, int | float) and not isinstance(expected, bool):
        number = found.item() if isinstance(found, Tensor) else found
        assert abs(number - expected) <= tolerance * max(1.0, abs(expected)), f"{name}: {number} instead of {expected}"
    else:
        assert found == expected, f"{name}: {found!r} instead of {expected!r}"
