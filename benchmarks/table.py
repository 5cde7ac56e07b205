"""Results as a Markdown table, and what `make bench` exits with."""

from collections.abc import Iterable, Sequence

from benchmarks.results import BELOW, NOT_SHOWN, Result

COLUMNS = ("row", "must", "aim", "median [min, max]", "rounds above 1", "load", "a unit: ours / peer", "verdict")


def markdown(results: Sequence[Result]) -> str:
    """A table, and below it what its rows need to be understood."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS)), *(_line(_cells(result)) for result in results)]
    notes = [f"- {result.title}: {result.note}" for result in results if result.note]
    return "\n".join(
        [
            "Ratios are peer / ours, CPU seconds per counted token or pair (or bytes): above 1 we need less.",
            "",
            *lines,
            "",
            *notes,
            "",
        ]
    )


def exit_code(results: Iterable[Result]) -> int:
    """1 where a row is below its must or was not shown, else 0."""
    return int(any(result.status in (BELOW, NOT_SHOWN) for result in results))


def _cells(result: Result) -> list[str]:
    status = f"{result.status} (tiny sizes)" if result.smoke else result.status
    verdict = f"{status}: {result.reason}" if result.reason else status
    return [
        result.title,
        result.must,
        result.aim,
        result.value,
        result.above_one,
        result.load,
        result.work.replace(" | ", " / "),
        verdict,
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
