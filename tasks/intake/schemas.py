"""Rules for the rows of the raw data: pandera schemas, and the plain findings they turn into.

Columns are never coerced: None stays None and 7 stays 7, so a wrong value is found, not trained on as the text "None".
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas
import pandera.pandas as pandera

from tasks.records.artifacts import SPLITS

KINDS: Mapping[str, tuple[str, ...]] = {
    "demonstrations": ("prompt", "response"),
    "preferences": ("prompt", "chosen", "rejected"),
    "prompts": ("prompt",),
}
"""Kind of row → its text columns. The file of a kind is `<kind>.jsonl`."""

_NAMES = ("group", "split")
# Text of UTF-8 bytes that were once read as Windows-1252: each of the two halves of the pattern is rare in real text.
_MOJIBAKE = re.compile(
    "[\u00c2\u00c3][\u0080-\u00bf\u0152-\u0178\u2013-\u2122]|\u00e2[\u0080\u20ac]|\u00ef\u00bb\u00bf|\ufffd"
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


MESSAGES: Mapping[str, str] = {
    "encoding": "Not UTF-8 text. Save the file as UTF-8.",
    "json": "Not a JSON object on one line.",
    "is_text": "Expected text. Quote the value, or remove the row where it is missing.",
    "not_empty": "Empty or only blanks.",
    "max_characters": "Longer than validate.max_characters.",
    "known_split": f"Expected one of {', '.join(SPLITS)}, or no `split` at all.",
    "different_answers": "chosen and rejected are equal: the pair says nothing.",
    "duplicate": "The same row was there before.",
    "contradiction": "Another row prefers the answers the other way round.",
    "mojibake": "Text that was once decoded wrongly. Export it again as UTF-8.",
    "control_character": "Holds a control character other than tab and line end.",
}


def breaches(kind: str, rows: Sequence[Mapping[str, Any]], max_characters: int) -> pandas.DataFrame:
    """The rules that rows of one kind break, each row, column and rule once.

    Args:
        kind: a key of KINDS.
        rows: decoded JSON objects. A column that a row lacks counts as None.
        max_characters: length limit of a text, in characters.

    Returns:
        One line for each breach, in the order of the rows: `position` of the row, `field`, `rule` (a key of MESSAGES),
        `severity` (a row with an error is dropped, one with a warning is kept).
    """
    columns = (*KINDS[kind], *_NAMES)
    frame = pandas.DataFrame({name: pandas.Series([row.get(name) for row in rows], dtype=object) for name in columns})
    found = [_lazy(error_schema(kind, max_characters), frame, "error"), _lazy(warning_schema(kind), frame, "warning")]
    return pandas.concat(found).sort_values("position", kind="stable", ignore_index=True)


def error_schema(kind: str, max_characters: int) -> pandera.DataFrameSchema:
    """What a row must fulfil to be kept."""
    text_rules = [
        _rule("is_text", lambda value: isinstance(value, str)),
        _rule("not_empty", lambda value: not isinstance(value, str) or not value.isspace() and value != ""),
        _rule("max_characters", lambda value: not isinstance(value, str) or len(value) <= max_characters),
    ]
    columns = {name: pandera.Column(None, text_rules, nullable=True) for name in KINDS[kind]}
    columns["group"] = pandera.Column(
        None, _rule("is_text", lambda value: value is None or isinstance(value, str)), nullable=True
    )
    columns["split"] = pandera.Column(
        None,
        _rule("known_split", lambda value: value is None or isinstance(value, str) and value in SPLITS),
        nullable=True,
    )
    return pandera.DataFrameSchema(columns, checks=[_different_answers()] if kind == "preferences" else None)


def warning_schema(kind: str) -> pandera.DataFrameSchema:
    """What is worth a look but stays."""
    text_rules = [
        _rule("mojibake", lambda value: not isinstance(value, str) or _MOJIBAKE.search(value) is None),
        _rule("control_character", lambda value: not isinstance(value, str) or _CONTROL.search(value) is None),
    ]
    return pandera.DataFrameSchema({name: pandera.Column(None, text_rules, nullable=True) for name in KINDS[kind]})


def _rule(name: str, holds: Callable[[object], bool]) -> pandera.Check:
    # A list of results keeps missing values in the check; a pandas map over None would not reach `holds` everywhere.
    return pandera.Check(
        lambda column: pandas.Series([holds(value) for value in column], index=column.index, dtype=bool),
        error=name,
        ignore_na=False,
    )


def _different_answers() -> pandera.Check:
    def differ(frame: pandas.DataFrame) -> pandas.Series:
        pairs = zip(frame["chosen"], frame["rejected"], strict=True)
        equal = [isinstance(chosen, str) and chosen == rejected for chosen, rejected in pairs]
        return ~pandas.Series(equal, index=frame.index, dtype=bool)

    return pandera.Check(differ, error="different_answers", ignore_na=False)


def _lazy(schema: pandera.DataFrameSchema, frame: pandas.DataFrame, severity: str) -> pandas.DataFrame:
    """Every failure of a schema in the form that `breaches` returns."""
    names = {"index": "position", "column": "field", "check": "rule"}
    try:
        schema.validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as report:
        cases = report.failure_cases
        # A rule over a whole row is reported once for each of its columns.
        several = cases["schema_context"] == "DataFrameSchema"
        cases = cases.assign(column=cases["column"].mask(several, "chosen, rejected"))
        return cases[list(names)].rename(columns=names).drop_duplicates().assign(severity=severity)
    return pandas.DataFrame(columns=[*names.values(), "severity"])
