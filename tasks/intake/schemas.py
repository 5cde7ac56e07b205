"""What a row must look like: a pandera schema for each kind, and the plain breaches it turns into.

Columns are never coerced: None stays None and 7 stays 7, so a wrong value is found, not trained on as the text "None".
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas
import pandera.pandas as pandera

from rlcore.cli.conversations import are_messages
from tasks.intake.kinds import MESSAGES, PROMPT, Kind, as_text
from tasks.intake.repeats.splits import normalised
from tasks.intake.text.conversations import empty_message, order_fault, prompt_fault, unknown_role
from tasks.intake.text.invisible import is_blank
from tasks.records.artifacts import SPLITS

Holds = Callable[[Any], bool]


class Rule(NamedTuple):
    """What the values of a column, or of several together, have to fulfil."""

    name: str
    holds: Holds
    is_about_form: bool = False
    """Text keeps the rule, whatever it says."""


class Breach(NamedTuple):
    """A rule that a row breaks."""

    position: int
    """Of the row among those that were checked."""
    field: str
    """Column, or columns."""
    rule: str


def breaches(kind: Kind, rows: Sequence[Mapping[str, Any]], max_characters: int, off: Collection[str]) -> list[Breach]:
    """The rules that rows of one kind break, each row, column and rule once, in the order of the rows.

    Args:
        kind: of the rows.
        rows: decoded JSON objects. A column that a row lacks counts as None.
        max_characters: length limit of a text, in characters.
        off: rules that are not asked.
    """
    if not rows:
        return []
    asked = _asked(kind, rows, max_characters, off)
    frame = pandas.DataFrame(
        {name: pandas.Series(_values(name, rows), dtype=object) for name, rules in asked.items() if rules}
    )
    found: list[Breach] = []
    try:
        _schema(asked, found).validate(frame, lazy=True)
    except pandera.errors.SchemaErrors:
        return sorted(dict.fromkeys(found), key=lambda breach: breach.position)
    return []


def explained(row: Mapping[str, Any], breach: Breach) -> str:
    """What is wrong with a row, where the rule alone does not say it."""
    (value,) = _values(breach.field, [row])
    if breach.rule == "role_order":
        return order_fault(value, _ends_with(breach.field)) or ""
    if breach.rule == "shared_prompt":
        return prompt_fault(*value) or ""
    if breach.rule == "known_role":
        return f"Found the role {unknown_role(value)!r}."
    if breach.rule == "max_characters":
        return f"Found {len(as_text(value) or ''):,} characters."
    if breach.rule in ("is_text", "messages", "label", "scores", "case_idx", "known_split"):
        return f"Found {'nothing' if value is None else f'{value!r:.80}'}."
    return ""


def _rules(kind: Kind, max_characters: int) -> dict[str, list[Rule]]:
    """Column → rules. Several columns, with commas between, are looked at together."""
    has_pair = "chosen" in kind.texts
    has_conversation = kind.name == "demonstrations"
    may_lack = {PROMPT} if has_pair else set(kind.texts) if has_conversation else set()
    columns = {name: _text_rules(name, max_characters, name in may_lack) for name in kind.texts}
    if has_pair:
        columns |= _PAIR_RULES
    if has_conversation:
        columns[MESSAGES] = _text_rules(MESSAGES, max_characters, True)
        columns |= {f"{name}, {MESSAGES}": [Rule("is_text", _is_one_there, is_about_form=True)] for name in kind.texts}
    columns["group"] = [Rule("is_text", lambda value: value is None or isinstance(value, str))]
    columns["split"] = [Rule("known_split", lambda value: value is None or isinstance(value, str) and value in SPLITS)]
    if kind.label is not None:
        columns[kind.label] = [Rule(kind.label, _LABELS[kind.label])]
    return columns


def _text_rules(column: str, max_characters: int, is_optional: bool) -> list[Rule]:
    ends = _ends_with(column)
    forms = (list,) if column == MESSAGES else (str, list)
    return [
        Rule("is_text", lambda value: isinstance(value, forms) or is_optional and value is None, is_about_form=True),
        Rule("messages", lambda value: not isinstance(value, list) or are_messages(value), is_about_form=True),
        Rule("known_role", lambda value: unknown_role(value) is None, is_about_form=True),
        Rule("role_order", lambda value: order_fault(value, ends) is None, is_about_form=True),
        Rule("not_empty", _has_content),
        Rule("max_characters", lambda value: len(as_text(value) or "") <= max_characters),
    ]


def _asked(
    kind: Kind, rows: Sequence[Mapping[str, Any]], max_characters: int, off: Collection[str]
) -> dict[str, list[Rule]]:
    """The rules that are worth a look at every row: a glance at whole columns shows that the others are kept."""
    columns = {name: _values(name, rows) for name in (*kind.texts, "group", "split")}
    types = {name: set(map(type, values)) for name, values in columns.items()}
    plain = {name for name in kind.texts if types[name] == {str}}
    without_messages = {name for name in kind.texts if list not in types[name]}
    short = {name for name in plain if max(map(len, columns[name])) <= max_characters}
    absent = {name for name in ("group", "split") if types[name] == {type(None)}}

    def is_kept(name: str, rule: Rule) -> bool:
        if rule.is_about_form and name != MESSAGES and plain.issuperset(set(name.split(", ")) - {MESSAGES}):
            return True
        if rule.name in _ABOUT_MESSAGES and name in without_messages:
            return True
        return name in absent or rule.name == "max_characters" and name in short

    return {
        name: [rule for rule in rules if rule.name not in off and not is_kept(name, rule)]
        for name, rules in _rules(kind, max_characters).items()
    }


def _schema(rules: Mapping[str, list[Rule]], found: list[Breach]) -> pandera.DataFrameSchema:
    """The schema of the rules. Every breach that it finds goes to `found`."""
    columns = {name: [_check(rule, name, found) for rule in some] for name, some in rules.items() if some}
    return pandera.DataFrameSchema({name: pandera.Column(None, some, nullable=True) for name, some in columns.items()})


def _values(columns: str, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """One column, or a tuple of several for each row."""
    names = columns.split(", ")
    if len(names) == 1:
        return [row.get(columns) for row in rows]
    return list(zip(*([row.get(name) for row in rows] for name in names), strict=True))


def _check(rule: Rule, columns: str, found: list[Breach]) -> pandera.Check:
    def keep(column: pandas.Series) -> pandas.Series:
        # A list keeps missing values in the check; a pandas map over None would not reach `holds` everywhere.
        kept = [rule.holds(value) for value in column]
        shown = _SHOWN_AS.get(columns, columns)
        if not all(kept):
            found.extend(Breach(position, shown, rule.name) for position, holds in enumerate(kept) if not holds)
        return pandas.Series(kept, index=column.index, dtype=bool)

    # The report of pandera copies every value that fails; one of them is enough to know that there are some.
    return pandera.Check(keep, error=rule.name, ignore_na=False, n_failure_cases=1)


def _ends_with(column: str) -> tuple[str, ...]:
    """Roles of the last message: an answer is the assistant's, a prompt is what the assistant answers."""
    return ("user", "tool") if column == PROMPT else ("assistant",)


def _has_content(value: Any) -> bool:
    return not is_blank(value) if isinstance(value, str) else empty_message(value) is None


def _is_one_there(values: tuple[Any, Any]) -> bool:
    return any(value is not None for value in values)


def _are_equal(chosen: Any, rejected: Any) -> bool:
    return chosen == rejected and isinstance(chosen, str | list)


def _look_equal(chosen: Any, rejected: Any) -> bool:
    """Whether two answers that are not equal become so by normalisation."""
    if chosen == rejected or _differ_at_a_glance(chosen, rejected):
        return False
    texts = as_text(chosen), as_text(rejected)
    return None not in texts and normalised(texts[0] or "") == normalised(texts[1] or "")


def _differ_at_a_glance(chosen: Any, rejected: Any) -> bool:
    """A cheap look at the first letter; most pairs differ there."""
    if not (isinstance(chosen, str) and isinstance(rejected, str) and chosen.isascii() and rejected.isascii()):
        return False
    return chosen.lstrip()[:1].lower() != rejected.lstrip()[:1].lower()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_scores(value: Any) -> bool:
    scores = list(value.values()) if isinstance(value, Mapping) else value
    if not isinstance(scores, list) or not scores:
        return False
    return all(score is None or _is_number(score) for score in scores) and any(score is not None for score in scores)


_ABOUT_MESSAGES = ("messages", "known_role", "role_order")
_SHOWN_AS = {"prompt, chosen": PROMPT, f"{PROMPT}, {MESSAGES}": PROMPT, f"response, {MESSAGES}": "response"}
"""Columns that are looked at together → where a breach is shown."""
_PAIR_RULES: Mapping[str, list[Rule]] = {
    "prompt, chosen": [
        Rule("is_text", lambda pair: pair[0] is not None or isinstance(pair[1], list), is_about_form=True)
    ],
    "prompt, chosen, rejected": [
        Rule("shared_prompt", lambda values: prompt_fault(*values) is None, is_about_form=True)
    ],
    "chosen, rejected": [
        Rule("different_answers", lambda pair: not _are_equal(*pair)),
        Rule("different_answers_normalised", lambda pair: not _look_equal(*pair)),
    ],
}
_LABELS: Mapping[str, Holds] = {
    "label": lambda value: isinstance(value, bool),
    "scores": _are_scores,
    "case_idx": lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
}
