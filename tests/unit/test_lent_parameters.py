"""params.yaml is given back as it was lent, but never over what somebody wrote since."""

import pytest

from rlcore.errors import ConfigError
from tasks.records.lent_parameters import COPY, RUNS, give_back, lend, lent, own_parameters, restore

MINE = b"# by hand\r\nalgorithm:   ppo\nseed: 0\n"
TO = [{"algorithm": "dpo", "seed": 0}, {"algorithm": "ppo", "seed": 0}]


@pytest.fixture
def params(tmp_path):
    """params.yaml of a checkout, lent to two runs."""
    (tmp_path / "params.yaml").write_bytes(MINE)
    lend(tmp_path, TO)
    return tmp_path / "params.yaml"


@pytest.mark.parametrize("left", [b"algorithm: dpo\nseed: 0\n", b"algorithm: ppo\nseed: 0\n", MINE])
def test_what_a_run_left_goes_and_every_byte_comes_back(params, left):
    params.write_bytes(left)
    give_back(params.parent)
    assert params.read_bytes() == MINE
    assert list((params.parent / ".rlhf").iterdir()) == []


def test_a_restored_file_is_lent_still(params):
    for _ in range(2):
        params.write_text("algorithm: dpo\nseed: 0\n")
        restore(params.parent)
        assert params.read_bytes() == MINE


@pytest.mark.parametrize("choice", ["keep", "take back"])
def test_what_somebody_wrote_since_stays_until_they_choose(params, choice):
    root = params.parent
    edited = b"algorithm: dpo\nseed: 7\n"
    params.write_bytes(edited)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"params\.yaml was changed while a run had borrowed it\. Keep"):
            give_back(root)
        assert params.read_bytes() == edited
    if choice == "keep":
        (root / RUNS).unlink()
    else:
        params.write_bytes((root / COPY).read_bytes())
    give_back(root)
    assert params.read_bytes() == (edited if choice == "keep" else MINE)


def test_it_is_given_back_once(params):
    give_back(params.parent)
    # A run of somebody's own with the settings of one that it was lent to.
    params.write_text("algorithm: dpo\nseed: 0\n")
    give_back(params.parent)
    assert params.read_text() == "algorithm: dpo\nseed: 0\n"


def test_the_owners_settings_are_in_the_copy_only_while_a_run_has_the_file(params):
    root = params.parent
    params.write_text("algorithm: dpo\nseed: 0\n")
    assert own_parameters(root).read_bytes() == MINE
    params.write_text("algorithm: dpo\nseed: 7\n")
    assert own_parameters(root) == params
    params.write_bytes(MINE)
    give_back(root)
    assert own_parameters(root) == params


def test_a_block_gives_back_at_its_end_and_its_own_error_is_the_one_that_is_said(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_bytes(MINE)
    with lent(tmp_path, TO):
        path.write_text("algorithm: dpo\nseed: 0\n")
    assert path.read_bytes() == MINE

    def fails_after_an_edit():
        with lent(tmp_path, TO):
            path.write_text("seed: 7\n")
            raise KeyError("the run's own")

    with pytest.raises(KeyError):
        fails_after_an_edit()
    assert (tmp_path / COPY).read_bytes() == MINE, "kept until somebody chooses"
