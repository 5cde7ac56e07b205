"""Files as they come: each fault is found at its place, and the rows around it are read byte for byte."""

import gzip
import json

import pytest

from tasks.intake.reading import lines, sources

A, B = b'{"prompt": "a"}\n', b'{"prompt": "\xc3\xa9 \\u00e9"}\n'
PACKED = gzip.compress(A + B)


def packed_in_parts(*parts):
    return b"".join(gzip.compress(part) for part in parts)


# Name of the file, its bytes, its good rows as bytes, and its faults: row from 0, line, column, rule.
DIRTY = {
    "a byte order mark": ("a.jsonl", b"\xef\xbb\xbf" + A + B, [A, B], []),
    "line ends of Windows": ("a.jsonl", A[:-1] + b"\r\n" + B, [A[:-1] + b"\r\n", B], []),
    "blank lines": ("a.jsonl", b"\n" + A + b" \t\n\r\n" + B + b"\n", [A, B], []),
    "a last line without an end": ("a.jsonl", A + B[:-1], [A, B[:-1]], []),
    "Latin-1 in one row": ("a.jsonl", A + b'{"prompt": "caf\xe9"}\n' + B, [A, B], [(1, 2, 16, "encoding")]),
    "bytes of a lone surrogate": ("a.jsonl", b'{"prompt": "\xed\xa0\x80"}\n' + A, [A], [(0, 1, 13, "encoding")]),
    "UTF-16 with its mark": ("a.jsonl", A.decode().encode("utf-16"), [], [(0, 1, None, "encoding")]),
    "UTF-16 without its mark": ("a.jsonl", A.decode().encode("utf-16-be"), [], [(0, 1, None, "encoding")]),
    "a cut last line": ("a.jsonl", A + B[:14], [A], [(1, 2, 12, "json")]),
    "two objects on one line": ("a.jsonl", A[:-1] + A + B, [B], [(0, 1, 16, "json")]),
    "commas between lines": ("a.jsonl", A[:-1] + b",\n" + B, [B], [(0, 1, 16, "json")]),
    "a comma after the last value": ("a.jsonl", A + b'{"prompt": "a",}\n' + B, [A, B], [(1, 2, 15, "json")]),
    "single quotation marks": ("a.jsonl", b"{'prompt': 'a'}\n" + A, [A], [(0, 1, 2, "json")]),
    "a value of Python": ("a.jsonl", b'{"prompt": None}\n' + A, [A], [(0, 1, 12, "json")]),
    "an unescaped quotation mark": ("a.jsonl", b'{"prompt": "a "b" c"}\n' + A, [A], [(0, 1, 16, "json")]),
    "a tab in a text": ("a.jsonl", b'{"prompt": "a\tb"}\n' + A, [A], [(0, 1, 14, "json")]),
    "a carriage return in a text": ("a.jsonl", b'{"prompt": "a\rb"}\n' + A, [A], [(0, 1, 14, "json")]),
    "a zero in a text": ("a.jsonl", A + b'{"prompt": "\0"}\n', [A], [(1, 2, 13, "json")]),
    "an unknown escape": ("a.jsonl", b'{"prompt": "C:\\x"}\n' + A, [A], [(0, 1, 15, "json")]),
    "a line break in a text": ("a.jsonl", b'{"prompt": "a\nb"}\n' + A, [A], [(0, 1, 14, "json"), (1, 2, 1, "json")]),
    "a list as a row": ("a.jsonl", A + b' ["a"]\n' + B, [A, B], [(1, 2, 2, "json")]),
    "a remark": ("a.jsonl", b"# rows\n" + A, [A], [(0, 1, 1, "json")]),
    "a log line in front": ("a.jsonl", b"[INFO] rows\n" + A, [A], [(0, 1, 2, "json")]),
    "a byte order mark between joined files": ("a.jsonl", A + b"\xef\xbb\xbf" + B, [A], [(1, 2, 1, "json")]),
    "NaN": ("a.jsonl", b'{"prompt": "NaN", "score": NaN}\n' + A, [A], [(0, 1, 28, "number")]),
    "a number beyond 64 bits": ("a.jsonl", b'{"n": [1, 18446744073709551616]}\n' + A, [A], [(0, 1, 11, "number")]),
    "a number of 5000 digits": ("a.jsonl", b'{"n": -' + b"9" * 5000 + b"}\n" + A, [A], [(0, 1, 7, "number")]),
    "a number beyond a double": ("a.jsonl", A + b'{"n": 1e999}\n', [A], [(1, 2, 7, "number")]),
    "one name twice": ("a.jsonl", b'{"prompt": "a", "prompt": "b"}\n' + A, [A], [(0, 1, 17, "duplicate_key")]),
    "one name in two ways": ("a.jsonl", b'{"n": 1, "\\u006e": 2}\n' + A, [A], [(0, 1, 10, "duplicate_key")]),
    "one name twice inside": (
        "a.jsonl", b'{"a": [{"r": 1}, {"r": ":\\"r\\":", "r" : 2}]}\n' + A, [A], [(0, 1, 35, "duplicate_key")],
    ),
    "101 lists inside each other": ("a.jsonl", b'{"n": ' + b"[" * 100 + b"\n" + A, [A], [(0, 1, 106, "json")]),
    "a million brackets": ("a.jsonl", b'{"n": ' + b"[" * 1_000_000 + b"\n" + A, [A], [(0, 1, 106, "json")]),
    "packed under a plain name": ("a.jsonl", PACKED, [A, B], []),
    "plain under a packed name": ("a.jsonl.gz", A + B, [A, B], []),
    "packed in parts": ("a.jsonl.gz", packed_in_parts(b"\xef", b"\xbb\xbf" + A, B[:9], B[9:]), [A, B], []),
    "a cut packed file": ("a.jsonl.gz", packed_in_parts(A, B[:9])[:-4], [A], [(1, 2, None, "gzip")]),
    "a damaged check sum": ("a.jsonl.gz", PACKED[:-8] + b"\0" * 8, [A, B], [(2, 3, None, "gzip")]),
    "a damaged block": ("a.jsonl.gz", gzip.compress(A) + PACKED[:10] + b"\xff" * 9, [A], [(1, 2, None, "gzip")]),
    "junk after a packed file": ("a.jsonl.gz", PACKED + b"junk", [A, B], [(2, 3, None, "gzip")]),
    "zip under the name of CSV": ("a.csv", b"PK\x03\x04rest", [], [(0, 1, None, "gzip")]),
    "a list under the name of JSON Lines": ("a.jsonl", b"[" + A[:-1] + b",\n" + B[:-1] + b"]\n", [A, B], []),
    "spread objects under the name of JSON Lines": (
        "a.jsonl", b'{\n  "prompt":\t"a"\n}\n{\n\n"prompt": "b"}\n',
        [b'{ "prompt":\t"a" }\n', b'{ "prompt": "b"}\n'], [],
    ),
    "JSON Lines under the name of a list": ("a.json", A + B, [A, B], []),
    "JSON Lines with commas under the name of a list": ("a.json", A[:-1] + b",\n" + B, [A, B], [(1, 1, 16, "json")]),
    "a list with a comma after the last row": ("a.json", b"[" + A + b",\n]", [A], [(1, 2, 1, "json")]),
    "a list without a comma": ("a.json", b"[" + A + B + b"," + A + b"]", [A, A], [(1, 2, 1, "json")]),
    "a list with two commas": ("a.json", b"[" + A + b",," + B + b"]", [A, B], [(1, 2, 2, "json")]),
    "a list with more than rows": (
        "a.json", b'[7, "a", null,' + A + b"]", [A], [(0, 1, 2, "json"), (1, 1, 5, "json"), (2, 1, 10, "json")],
    ),
    "a row of a list that does not end": (
        "a.json", b'[\n{"prompt": "a\n},\n' + A + b",\n" + B + b"]", [A, B], [(0, 2, 14, "json")],
    ),
    "a row of a list with a wrong bracket": (
        "a.json", b'[\n  {"n": [1, 2},\n  ' + A + b"]", [A], [(0, 2, 14, "json")],
    ),
    "a row of a list without its last bracket": (
        "a.json", b'[\n{"n": 1,\n' + A + b", " + B + b"]", [A, B], [(0, 3, 1, "json")],
    ),
    "a row of a list that ends below the next ones": (
        "a.json", b'[\n{"n": 1\n' + A + b",\n" + B + b"}\n]", [A, B], [(0, 3, 1, "json"), (3, 6, 1, "json")],
    ),
    "the last row of a list with a wrong bracket": (
        "a.json", b"[" + A + b',\n{"n": [1, 2}\n]', [A], [(1, 3, 12, "json")],
    ),
    "an indented row of a list that is broken inside": (
        "a.json", b'[\n {\n  "m": [\n   {\n    "r": "x\n   }\n  ]\n },\n ' + A + b"]", [A], [(0, 5, 12, "json")],
    ),
    "a cut list": ("a.json", b"[\n" + A + b",\n" + B[:14], [A], [(1, 4, 12, "json")]),
    "a list that is cut between rows": ("a.json", b"[\n" + A + b",\n", [A], [(1, 4, 1, "json")]),
    "two lists": ("a.json", b"[" + A + b"]\n[" + B + b"]", [A, B], []),
    "CSV under the name of JSON": ("a.json", b"prompt\na\n", [], [(0, 1, 1, "json")]),
    "a cut packed list": ("a.json.gz", packed_in_parts(b"[" + A + b"," + B[:9])[:-4], [A], [(1, 2, None, "gzip")]),
}  # fmt: skip
ENDED = {
    "UTF-16 with its mark", "UTF-16 without its mark", "a cut packed file", "a damaged check sum", "a damaged block",
    "junk after a packed file", "zip under the name of CSV", "a cut list", "a list that is cut between rows",
    "CSV under the name of JSON", "a cut packed list",
    "the last row of a list with a wrong bracket", "semicolons", "tabs", "a name twice", "no name",
    "blanks around a name", "JSON under the name of CSV", "line ends of old Macs", "a cut packed table",
}  # fmt: skip
"""Cases in which nobody knows how many rows are missing."""

ONE, TWO = b'{"prompt": "a", "chosen": "1"}\n', b'{"prompt": "b\\nc", "chosen": ""}\n'
DIRTY_TABLES = {
    "a byte order mark before names": ("a.csv", b"\xef\xbb\xbfprompt,chosen\r\na,1\r\n", [ONE], []),
    "line breaks in cells and blank lines": ("a.csv", b'prompt,chosen\n\n"b\nc",\n\r\na,1', [TWO, ONE], []),
    "separators of lines in cells": (
        "a.csv", 'prompt,chosen\n"a\x0b\x0c\x85\u2028\r",1\n'.encode(),
        ['{"prompt": "a\\u000b\\f\x85\u2028\\r", "chosen": "1"}\n'.encode()], [],
    ),
    "a cell too few, a cell too many": (
        "a.csv", b'prompt,chosen\na\n"b\nc",\na,1,2\na,1\n', [TWO, ONE], [(0, 2, None, "csv"), (2, 5, None, "csv")],
    ),
    "a quotation mark that nothing closes": ("a.csv", b'prompt,chosen\n"a,1\na,1\n', [ONE], [(0, 2, None, "csv")]),
    "a quotation mark that another row closes": (
        "a.csv", b'prompt,chosen\n"a,1\na,1\n"b\nc",\n', [ONE, TWO], [(0, 2, None, "csv")],
    ),
    "a quotation mark that nothing closes before Latin-1": (
        "a.csv", b'prompt,chosen\n"a,1\n\xe9,1\na,1\n', [ONE], [(0, 2, None, "csv"), (1, 3, 1, "encoding")],
    ),
    "text after a quotation mark": ("a.csv", b'prompt,chosen\n"a" b,1\na,1\n', [ONE], [(0, 2, None, "csv")]),
    "a carriage return outside of marks": ("a.csv", b"prompt,chosen\na\rb,1\na,1\n", [ONE], [(0, 2, None, "csv")]),
    "a zero in a cell": ("a.csv", b"prompt,chosen\na,\x001\na,1\n", [ONE], [(0, 2, 3, "csv")]),
    "Latin-1 in a cell": ("a.csv", b'prompt,chosen\n"a\n\xe9",1\na,1\n', [ONE], [(0, 3, 1, "encoding")]),
    "semicolons": ("a.csv", b"prompt;chosen\na;1\n", [], [(0, 1, None, "csv")]),
    "tabs": ("a.csv", b"prompt\tchosen\na\t1\n", [], [(0, 1, None, "csv")]),
    "a name twice": ("a.csv", b"prompt,prompt\na,1\n", [], [(0, 1, None, "csv")]),
    "no name": ("a.csv", b"prompt,\na,1\n", [], [(0, 1, None, "csv")]),
    "blanks around a name": ("a.csv", b"prompt, chosen\na,1\n", [], [(0, 1, None, "csv")]),
    "JSON under the name of CSV": ("a.csv", A, [], [(0, 1, None, "csv")]),
    "line ends of old Macs": ("a.csv", b"prompt,chosen\ra,1\r", [], [(0, 1, None, "csv")]),
    "a cut packed table": (
        "a.csv.gz", packed_in_parts(b'prompt,chosen\na,1\n"b\nc')[:-4], [ONE], [(1, 3, None, "gzip")],
    ),
}  # fmt: skip
ALL = DIRTY | DIRTY_TABLES


@pytest.fixture(params=ALL)
def found(request, tmp_path):
    """Name of the case, what reading the file gave, the rows and the faults that are expected."""
    name, content, good, faults = ALL[request.param]
    path = tmp_path / name
    path.write_bytes(content)
    [source] = sources(path)
    return request.param, list(lines(source)), good, faults


def test_every_fault_of_a_dirty_file_has_its_row_line_column_and_rule_and_the_other_rows_survive(found):
    case, rows, good, faults = found
    shown = [(row, line.fault.line, line.fault.column, line.fault.rule) for row, line in enumerate(rows) if line.fault]
    assert shown == faults
    assert [line.raw for line in rows if not line.fault] == good
    assert [line.row for line in rows if not line.fault] == [json.loads(raw) for raw in good]
    assert all(line.row == {} for line in rows if line.fault)
    assert any(line.fault.ends_file for line in rows if line.fault) == (case in ENDED)


def test_a_message_is_one_line_with_what_was_found(found):
    _, rows, _, _ = found
    for line in rows:
        if line.fault:
            assert "\n" not in line.fault.message
            assert line.fault.message.endswith((".", "?"))
            assert "Traceback" not in line.fault.message
