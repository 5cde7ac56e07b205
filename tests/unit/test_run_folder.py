"""The folder of a run, and the identity of a run."""

from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch

from rlcore.errors import CheckpointError, DataError
from rlcore.run_folder import checkpoint_folder, require_same_run, rows_sha256, weights_sha256


def test_a_folder_that_was_named_stays_and_another_goes(tmp_path: Path):
    with checkpoint_folder(tmp_path / "named", tmp_path / "model") as folder:
        assert folder == tmp_path / "named"
    with checkpoint_folder(None, tmp_path / "deep" / "model") as folder:
        assert folder.parent == tmp_path / "deep"
        (folder / "step-1").mkdir()
    assert list((tmp_path / "deep").iterdir()) == []


def test_an_error_leaves_no_folder_of_ours_behind(tmp_path: Path):
    with pytest.raises(KeyError), checkpoint_folder(None, tmp_path / "model"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_another_run_is_named_by_what_differs():
    identity = {"config": {"seed": 0, "lora": None}, "rows": "abc"}
    require_same_run(Path("step-1"), identity, {"rows": "abc", "config": {"lora": None, "seed": 0}})
    with pytest.raises(CheckpointError) as caught:
        require_same_run(Path("step-1"), identity, {"config": {"seed": 1, "lora": {"rank": 2}}, "rows": "abc"})
    assert str(caught.value) == (
        "step-1: found a run with other settings or data, expected this one's (config.lora.rank: found None, "
        "expected 2; config.seed: found 0, expected 1). Empty the folder to start anew, or resume with the former ones."
    )


def test_hashes_see_order_and_content():
    rows = [{"prompt": "a", "n": 1}, {"prompt": "b", "n": 2}]
    assert rows_sha256(rows) == rows_sha256([{"n": 1, "prompt": "a"}, {"n": 2, "prompt": "b"}])
    assert len({rows_sha256(rows), rows_sha256(rows[::-1]), rows_sha256(rows[:1]), rows_sha256(["ab"])}) == 4
    weight = torch.ones(2, 3)
    others = [("w", weight + 1), ("v", weight), ("w", weight.T), ("w", weight.half())]
    hashes = {weights_sha256([other]) for other in [("w", weight), *others]}
    assert len(hashes) == 5


class Unprintable:
    """Says where it lies in memory, as objects do by default."""


def inside_itself():
    row: dict = {}
    row["row"] = row
    return row


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tags": {"a", "b"}}, r"Row 1, key 'tags': found \{'"),
        (["text", [4], {"tags": frozenset("ab")}], "Row 1, key 'tags': found frozenset"),
        ({"fine": 1, "judge": Unprintable()}, "Row 1, key 'judge': found <.*Unprintable object at 0x"),
        ({"deep": [{"judge": len, "key": Unprintable()}]}, "Row 1, key 'deep'"),
        ({1: "a", "b": 2}, r"Row 1, keys \[1, 'b'\]: found several types"),
        ({"deep": {1: "a", "b": 2}}, "Row 1, key 'deep': found {1: 'a', 'b': 2}"),
        ({("a", "b"): 1}, "Row 1, key"),
        (inside_itself(), "Row 1, key 'row'"),
        ({1, 2}, r"Row 1, found \{1, 2\}"),
    ],
)
def test_rows_that_differ_from_process_to_process_are_refused(row, message):
    with pytest.raises(DataError, match=message):
        rows_sha256([{"prompt": "fine"}, row])


def test_values_with_a_stable_text_count():
    values = [date(2026, 1, 2), date(2026, 1, 3), Path("a"), torch.ones(2000), torch.arange(2000)]
    hashes = {rows_sha256([{"value": value}]) for value in values}
    assert len(hashes) == len(values)
    assert rows_sha256([{"value": np.arange(3)}]) == rows_sha256([{"value": [0, 1, 2]}])
    assert rows_sha256([{1: "a", 2: "b"}]) == rows_sha256([{2: "b", 1: "a"}])
