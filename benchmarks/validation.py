"""What validation costs beside a bare read of the same file and its tokenisation, and how much memory it takes.

    python -m benchmarks.validation --rows 1000000

Each side runs twice in a process of its own, in the order A B B A, so that a machine that slows down or speeds up
changes both. Rows, tokenizer and everything written lie in one folder, which goes at the end.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SEED = 0
VOCABULARY = 8_000
"""Tokens of the tokenizer, which is trained on the first rows."""
TRAINED_ROWS = 20_000
MAX_TOKENS = 512
BATCH = 8_192
"""Texts that the bare side encodes at once."""
BAD_ROWS = 500_000
BAD_ROW = '{"prompt": null, "chosen": 7, "rejected": ""}\n'
KINDS = ("demonstrations", "preferences", "prompts")
LETTERS = "etaoinshrdlu"
COLUMNS = ("prompt", "chosen", "rejected")


def main() -> None:
    """Run both sides, print a table, write the figures as JSON."""
    parser = argparse.ArgumentParser(description="validation beside a bare read and tokenisation")
    parser.add_argument("--rows", type=int, default=1_000_000, help="preference pairs")
    parser.add_argument("--json", type=Path, default=Path("validation-benchmark.json"), help="where the figures go")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        sys.stdout.write(json.dumps(_measured(arguments.side, arguments.folder)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_rows(folder, arguments.rows)
        write_tokenizer(folder)
        figures = [_in_process(side, folder) for side in ("bare", "validate", "validate", "bare")]
        alone = {side: _in_process(side, folder) for side in ("near", "bad")}
    report = {**summary(arguments.rows, figures), **alone}
    arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(table(report))


def write_rows(folder: Path, count: int) -> None:
    """Pairs of some 100 words, a twentieth of them beyond ASCII; the other kinds have no rows."""
    for kind in KINDS:
        (folder / f"{kind}.jsonl").touch()
    chance = random.Random(SEED)
    words = ["".join(chance.choices(LETTERS, k=chance.randint(2, 9))) for _ in range(20_000)]
    words += ["déjà", "naïve", "“so”", "you@", "12", "2024", "<b>", "(see"]

    def text(least: int, most: int) -> str:
        return " ".join(chance.choices(words, k=chance.randint(least, most))).capitalize() + "."

    with (folder / "preferences.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count):
            row = {"prompt": f"{text(5, 40)} ({number})", "chosen": text(10, 60), "rejected": text(10, 60)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer, as today's chat models have one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<|end|>"], show_progress=False)
    tokenizer.train_from_iterator(_texts(folder, TRAINED_ROWS), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def bare(folder: Path) -> None:
    """Read the file with pyarrow, and encode its texts."""
    from pyarrow import json as arrow_json
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = arrow_json.read_json(folder / "preferences.jsonl")
    for batch in rows.to_batches(max_chunksize=BATCH):
        for column in COLUMNS:
            tokenizer.encode_batch_fast(batch[column].to_pylist(), add_special_tokens=False)


def validate(folder: Path) -> None:
    """All rules, the splits and the report, with lengths in tokens."""
    from rlcore.configs import ValidateConfig
    from tasks.validate import validate_folder

    config = ValidateConfig(tokenizer=str(folder), max_tokens=MAX_TOKENS)
    validate_folder(folder, folder / "out", config).as_json()


def near(folder: Path) -> None:
    """The search for nearly equal rows alone."""
    from tasks.intake.repeats.near_duplicates import NearDuplicates

    found = NearDuplicates(0.8)
    piece: list[str] = []
    for text in _texts(folder):
        piece.append(text)
        if len(piece) == BATCH:
            found.add(piece)
            piece = []
    found.add(piece)
    sum(1 for _ in found.pairs())


def bad(folder: Path) -> None:
    """A report on half a million rows in which every column is wrong."""
    from rlcore.configs import ValidateConfig
    from tasks.intake.checking import check

    file = folder / "bad.jsonl"
    file.write_text(BAD_ROW * BAD_ROWS, encoding="utf-8")
    check([str(file)], "preferences", ValidateConfig()).as_json()


SIDES: dict[str, Callable[[Path], None]] = {"bare": bare, "validate": validate, "near": near, "bad": bad}


def summary(rows: int, figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Both sides with their spread, and their ratio."""
    sides: dict[str, dict[str, Any]] = {
        side: {
            "seconds": [figure["seconds"] for figure in figures if figure["side"] == side],
            "cpu_seconds": [figure["cpu_seconds"] for figure in figures if figure["side"] == side],
            "peak_gib": max(figure["peak_gib"] for figure in figures if figure["side"] == side),
        }
        for side in ("bare", "validate")
    }
    ratio = statistics.mean(sides["validate"]["seconds"]) / statistics.mean(sides["bare"]["seconds"])
    return {"rows": rows, "ratio": ratio, **sides}


def table(report: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [f"{report['rows']:,} pairs, ratio {report['ratio']:.2f}", f"{'side':10} {'seconds':>20} {'peak GiB':>9}"]
    for side in ("bare", "validate"):
        seconds = ", ".join(f"{second:.1f}" for second in report[side]["seconds"])
        lines.append(f"{side:10} {seconds:>20} {report[side]['peak_gib']:9.2f}")
    for side in ("near", "bad"):
        lines.append(f"{side:10} {report[side]['seconds']:20.1f} {report[side]['peak_gib']:9.2f}")
    return "\n".join(lines) + "\n"


def _texts(folder: Path, limit: int | None = None) -> Iterator[str]:
    with (folder / "preferences.jsonl").open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            if limit is not None and number >= limit:
                return
            yield "\n".join(json.loads(line).values())


def _in_process(side: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.validation", "--side", side, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measured(side: str, folder: Path) -> dict[str, Any]:
    begun, cpu = time.perf_counter(), time.process_time()
    SIDES[side](folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = time.perf_counter() - begun
    return {"side": side, "seconds": seconds, "cpu_seconds": time.process_time() - cpu, "peak_gib": peak}


if __name__ == "__main__":
    main()
