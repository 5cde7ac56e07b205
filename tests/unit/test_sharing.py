"""Work that two processes do together: what each gets back, and that an error in one of them ends both."""

import json

from rlcore.forward_backward import AsyncTrainingClient, in_each_process, in_first_process, in_shares
from tests.support.lane_models import OneNumber
from tests.support.launch import run_in_processes

PROGRAM = """
import json, torch
from rlcore.errors import DataError
from rlcore.forward_backward import AsyncTrainingClient, in_each_process, in_first_process, in_shares
from tests.support.lane_models import OneNumber

client = AsyncTrainingClient(OneNumber())
rank = client.processes.rank


def fails_in(number, error):
    if rank == number:
        raise error


def told(share, work):
    try:
        return share(client, work)
    except Exception as error:
        return repr(error)


def shares_of(count):
    return lambda client, work: in_shares(client, count, work)


print(json.dumps({
    "each": told(in_each_process, lambda: 10 + rank),
    # work may wait for the client, whose thread does the exchange
    "shares": told(shares_of(5), lambda rows: client.evaluate_in_parts(rows, lambda _, row: [rank, *row], part_size=1)),
    # rows 0, 3 and 4 belong together, and rows 1 and 2
    "groups": told(
        lambda client, work: in_shares(client, 5, work, "abbaa"), lambda rows: [[rank, *rows] for _ in rows]
    ),
    "few": told(shares_of(1), lambda rows: [f"{row} by {rank}" for row in rows]),
    "first": told(in_first_process, lambda: [rank, torch.is_grad_enabled()]),
    "each fails": told(in_each_process, lambda: fails_in(1, DataError("row 7"))),
    "share fails": told(shares_of(4), lambda rows: fails_in(0, KeyError("x")) or rows),
    "share is short": told(shares_of(4), lambda rows: rows[1:] if rank else rows),
    "first fails": told(in_first_process, lambda: fails_in(0, OSError("disk full"))),
    "still usable": told(in_each_process, lambda: rank),
}))
"""


def test_two_processes_share_work_and_errors():
    first, second = map(json.loads, run_in_processes(PROGRAM))
    for told in (first, second):
        assert told["each"] == [10, 11]
        # rows 0, 2 and 4 are the first process's
        assert told["shares"] == [[0, 0], [1, 1], [0, 2], [1, 3], [0, 4]]
        assert told["groups"] == [[0, 0, 3, 4], [1, 1, 2], [1, 1, 2], [0, 0, 3, 4], [0, 0, 3, 4]]
        assert told["few"] == ["0 by 0"]
        assert told["first"] == [0, False]
        assert told["each fails"] == "DataError('row 7')"
        assert told["still usable"] == [0, 1]
    assert (first["share fails"], second["share fails"]) == ("KeyError('x')", "RLCoreError(\"KeyError: 'x'\")")
    assert (first["first fails"], second["first fails"]) == (
        "OSError('disk full')",
        "RLCoreError('OSError: disk full')",
    )
    assert first["share is short"].startswith("RLCoreError('ValueError: zip()")
    assert second["share is short"].startswith("ValueError('zip()")


def test_one_process_does_all_the_work_itself():
    with AsyncTrainingClient(OneNumber()) as client:
        assert in_each_process(client, lambda: 3) == [3]
        for together in (None, "aba"):
            assert in_shares(client, 3, lambda rows: [row * 10 for row in rows], together) == [0, 10, 20]
        assert in_first_process(client, lambda: "done") == "done"
