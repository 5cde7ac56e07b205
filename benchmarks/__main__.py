"""`python -m benchmarks [ROW …]`: measure rows, print the table, keep JSON, Markdown and a plot.

Exit code 1 where a row is below its must or was not shown, 2 where there is no such row.
"""

import argparse
import sys
from pathlib import Path

from transformers.utils import logging as transformers_logging

from benchmarks.plot import plot
from benchmarks.process import HOME
from benchmarks.results import Result, read_results, write_results
from benchmarks.rows import ROWS, Row, beside
from benchmarks.table import exit_code, markdown

ROUNDS = 7


def main() -> int:
    """See the module."""
    arguments = _parser().parse_args()
    rows = {row.name: row for row in ROWS}
    if arguments.list:
        print("\n".join([*(f"{row.name:20} {row.title}" for row in ROWS), *beside()]))
        return 0
    unknown = [name for name in arguments.rows if name not in rows]
    if unknown:
        print(f"Found {', '.join(unknown)}, expected rows of: {', '.join(rows)}.", file=sys.stderr)
        return 2
    transformers_logging.disable_progress_bar()
    chosen = [rows[name] for name in arguments.rows or rows]
    rounds = 1 if arguments.smoke else arguments.rounds
    measured = _measure(chosen, rounds, arguments.smoke, arguments.json)
    _write_beside(arguments.json)
    print(markdown(measured))
    print("\n".join(f"Figures of their own: {command}" for command in beside()))
    return exit_code(measured)


def _measure(chosen: list[Row], rounds: int, smoke: bool, file: Path) -> list[Result]:
    """Each row, kept as soon as it is there; rows of an earlier call stay in the file."""
    kept, measured = read_results(file), []
    for row in chosen:
        print(f"{row.name}: measuring", file=sys.stderr, flush=True)
        result = row.measure(rounds, smoke=smoke)
        print(f"{row.name}: {result.value or result.reason}", file=sys.stderr, flush=True)
        measured.append(result)
        kept[row.name] = result
        write_results(file, kept)
    return measured


def _write_beside(file: Path) -> None:
    """The table and the plot of everything that the JSON file holds, in the order of ROWS."""
    kept = read_results(file)
    ordered = [kept[row.name] for row in ROWS if row.name in kept]
    file.with_suffix(".md").write_text(markdown(ordered), encoding="utf-8")
    plot(ordered, file.with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ratios of CPU time and memory to peers.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names of rows, see --list; all of them by default")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds that count; {ROUNDS}")
    parser.add_argument(
        "--json", type=Path, default=HOME / "results.json", metavar="FILE", help="raw rounds; table and plot beside it"
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes and one round: proves that rows run, no more")
    parser.add_argument("--list", action="store_true", help="print the rows")
    return parser


if __name__ == "__main__":
    sys.exit(main())
