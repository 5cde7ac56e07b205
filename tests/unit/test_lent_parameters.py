"""params.yaml is given back as it was lent, but never over what somebody wrote since."""

import pytest

from tasks.records.lent_parameters import give_back, lend

MINE = "# by hand\nalgorithm:   ppo\nseed: 0\n"
RUNS = [{"algorithm": "dpo", "seed": 0}, {"algorithm": "ppo", "seed": 0}]


@pytest.fixture
def params(tmp_path):
    """params.yaml of a checkout, lent to two runs."""
    (tmp_path / "params.yaml").write_text(MINE)
    lend(tmp_path, RUNS)
    return tmp_path / "params.yaml"


@pytest.mark.parametrize("left", ["algorithm: dpo\nseed: 0\n", "algorithm: ppo\nseed: 0\n", MINE])
def test_what_a_run_left_goes_and_every_byte_comes_back(params, left):
    params.write_text(left)
    give_back(params.parent)
    assert params.read_text() == MINE


def test_what_somebody_wrote_since_stays(params):
    params.write_text("algorithm: dpo\nseed: 7\n")
    give_back(params.parent)
    assert params.read_text() == "algorithm: dpo\nseed: 7\n"


def test_it_is_given_back_once(params):
    give_back(params.parent)
    # A run of somebody's own with the settings of one that it was lent to.
    params.write_text("algorithm: dpo\nseed: 0\n")
    give_back(params.parent)
    assert params.read_text() == "algorithm: dpo\nseed: 0\n"
