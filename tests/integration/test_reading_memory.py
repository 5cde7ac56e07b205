"""Files larger than the memory they may take, each read in a process of its own."""

import gzip
import json
import os
import subprocess
import sys

import pyarrow
import pytest
from pyarrow import parquet

ROWS = 5_000
WORDS = "A sentence of some length, as there are many in a set of preferences. " * 145
LONG = "x" * 5_000_000
READ = """
import sys
import pyarrow.parquet
from tasks.intake.reading import chunks, sources

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10

[source] = sources(sys.argv[1])
before = peak()
count = 0
for piece in chunks(source, max_bytes=4 << 20):
    assert all(line.fault is None for line in piece)
    count += len(piece)
print(count, peak() - before)
"""


def row(number):
    return {"prompt": f"{number} {WORDS[:200]}", "chosen": WORDS + str(number), "rejected": WORDS[:-9]}


def lines_of(file):
    file.writelines(json.dumps(row(number)) + "\n" for number in range(ROWS))


def as_json_lines(path):
    with path.open("w") as file:
        lines_of(file)


def as_packed_lines(path):
    with gzip.open(path, "wt", compresslevel=1) as file:
        lines_of(file)


def as_list_on_one_line(path):
    with path.open("w") as file:
        file.write("[")
        file.writelines(json.dumps(row(number)) + ", " for number in range(ROWS - 1))
        file.write(json.dumps(row(ROWS)) + "]")


def as_csv(path):
    with path.open("w") as file:
        file.write("prompt,chosen,rejected\n")
        file.writelines(",".join(f'"{cell}"' for cell in row(number).values()) + "\n" for number in range(ROWS))


def as_parquet(path):
    # One row group, so that the file cannot be read group by group; a page, which must be read whole, is small.
    table = pyarrow.Table.from_pylist([row(number) for number in range(ROWS)])
    options = {"row_group_size": ROWS, "write_batch_size": 64, "compression": "none", "use_dictionary": False}
    parquet.write_table(table, path, **options)


FORMATS = {
    "a.jsonl": as_json_lines,
    "a.jsonl.gz": as_packed_lines,
    "a.json": as_list_on_one_line,
    "a.csv": as_csv,
    "a.parquet": as_parquet,
}


def rows_and_peak(path):
    """Number of rows, and how many bytes of memory reading them took at most."""
    # Arrow's own allocator keeps up to 40 MB for later, more on some machines than on others.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "a.jsonl" else pytest.mark.long) for name in FORMATS]
)
def test_a_file_of_100_mb_takes_a_fraction_of_that_in_memory(tmp_path, name):
    FORMATS[name](tmp_path / name)
    if not name.endswith(".gz"):
        assert (tmp_path / name).stat().st_size > 100_000_000
    rows, peak = rows_and_peak(tmp_path / name)
    assert rows == ROWS
    # Arrow takes some 60 MB, as much for 300 MB of rows.
    assert peak < (85_000_000 if name == "a.parquet" else 40_000_000)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_a_row_of_5_mb_takes_a_few_copies_of_it(tmp_path, name):
    path = tmp_path / name
    texts = {
        "a.jsonl": json.dumps({"prompt": LONG}) + "\n" + '{"prompt": ""}\n',
        "a.json": json.dumps([{"prompt": LONG}, {"prompt": ""}]),
        "a.csv": f'prompt\n"{LONG}"\n""\n',
    }
    if name in texts:
        path.write_text(texts[name])
    else:
        parquet.write_table(pyarrow.table({"prompt": [LONG, ""]}), path)
    rows, peak = rows_and_peak(path)
    assert rows == 2
    assert peak < 12 * len(LONG)
