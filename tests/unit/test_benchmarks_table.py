"""What `make bench` prints, keeps and exits with."""

from pathlib import Path

import pytest

from benchmarks.results import BELOW, NOT_SHOWN, NOTED, REACHED, Result, read_results, write_results
from benchmarks.table import exit_code, markdown


def row(**facts) -> Result:
    return Result(**{"name": "ppo", "title": "PPO", "must": "2", "aim": "2.7", "status": REACHED, **facts})


@pytest.mark.parametrize(("statuses", "code"), [
    ([REACHED, NOTED], 0), ([REACHED, BELOW], 1), ([REACHED, NOT_SHOWN], 1), ([], 0),
])  # fmt: skip
def test_it_fails_where_a_row_is_below_or_not_shown(statuses: list[str], code: int):
    assert exit_code([row(status=status) for status in statuses]) == code


def test_the_table_has_a_line_for_each_row():
    shown = row(
        value="2.10 [2.00, 2.20]", above_one="7 of 7", load="0.5 to 1.2", work="64 tokens | 64 tokens", note="Why."
    )
    missing = row(title="DPO", status=NOT_SHOWN, reason="skipped: trl-1.12 is not installed, run benchmarks/peers.sh")
    lines = markdown([shown, missing]).splitlines()
    assert "| PPO | 2 | 2.7 | 2.10 [2.00, 2.20] | 7 of 7 | 0.5 to 1.2 | 64 tokens / 64 tokens | reached |" in lines
    assert (
        "| DPO | 2 | 2.7 |  |  |  |  | not shown: skipped: trl-1.12 is not installed, run benchmarks/peers.sh |"
        in lines
    )
    assert "- PPO: Why." in lines


def test_tiny_sizes_are_marked():
    assert "| not shown (tiny sizes) |" in markdown([row(status=NOT_SHOWN, smoke=True)])


def test_results_survive_the_file(tmp_path: Path):
    file = tmp_path / "folder" / "results.json"
    assert read_results(file) == {}
    kept = {"ppo": row(median=2.1, rounds=[{"load": 0.5}]), "dpo": row(name="dpo")}
    write_results(file, kept)
    assert read_results(file) == kept
    assert [each.name for each in file.parent.iterdir()] == ["results.json"]
