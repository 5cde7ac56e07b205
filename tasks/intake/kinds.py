"""The kinds of rows: which columns each has, and the texts in them, whatever their form.

A text column holds text, or chat messages; a conversation may stand for prompt and answer together.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

PROMPT, MESSAGES = "prompt", "messages"


@dataclass(frozen=True)
class Kind:
    """One kind of row.

    Attributes:
        name: also of its file.
        texts: text columns, the prompt first.
        answers: those of them that answer the prompt.
        label: column that says what a person thinks of the texts, and its rule; None where there is none.
        is_closed: whether nobody reads other columns.
        is_needed: whether a data set has a file of it, even an empty one.
    """

    name: str
    texts: tuple[str, ...]
    answers: tuple[str, ...]
    label: Literal["label", "scores", "case_idx"] | None = None
    is_closed: bool = True
    is_needed: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """That make a row one of this kind."""
        return self.texts if self.label is None else (*self.texts, self.label)


_ALL = (
    Kind("demonstrations", ("prompt", "response"), ("response",), is_needed=True),
    Kind("preferences", ("prompt", "chosen", "rejected"), ("chosen", "rejected"), is_needed=True),
    Kind("prompts", ("prompt",), (), is_closed=False, is_needed=True),
    Kind("unpaired", ("prompt", "completion"), ("completion",), "label"),
    Kind("scores", ("prompt", "response"), ("response",), "scores"),
    Kind("cases", ("prompt",), (), "case_idx", is_closed=False),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}
"""The file of a kind is `<kind>.jsonl` or the like."""
ALIASES: Mapping[str, str] = {"sft": "demonstrations"}
"""Words of the command line for a kind."""
COMMON_COLUMNS = ("group", "split", "objective", "agreement")
"""Columns that rows of every kind may have, and that are read."""
SHOWN_COLUMNS = 10
"""Most columns that a message lists."""


def kind_of(columns: Collection[str]) -> str | None:
    """The kind that columns tell, also where some are missing; None where they are of no kind."""
    telling = (
        ("preferences", {"chosen", "rejected"}),
        ("unpaired", {"completion"}),
        ("scores", {"scores"}),
        ("demonstrations", {"response", MESSAGES}),
        ("cases", {"case_idx"}),
        ("prompts", {PROMPT}),
    )
    return next((kind for kind, names in telling if not names.isdisjoint(columns)), None)


def columns_of_kinds() -> str:
    """The columns of each kind, in words."""
    return "; ".join(f"{', '.join(kind.columns)} ({name})" for name, kind in KINDS.items())


def listed(columns: Collection[str]) -> str:
    """The first columns, for a message."""
    more = f" and {len(columns) - SHOWN_COLUMNS} more" if len(columns) > SHOWN_COLUMNS else ""
    return (", ".join(islice(columns, SHOWN_COLUMNS)) or "none") + more


def as_text(value: Any) -> str | None:
    """A text, or the contents of messages, one after the other; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        contents = (message.get("content") for message in value if isinstance(message, Mapping))
        return "\n".join(content for content in contents if isinstance(content, str))
    return None


def values_of(kind: Kind, row: Mapping[str, Any]) -> dict[str, Any]:
    """Text or messages of each text column. What precedes the answer in a conversation is its prompt.

    A prompt of one question is a text.
    """
    values = {name: row.get(name) for name in kind.texts}
    if "response" in values and values["response"] is None and MESSAGES in row:
        values["prompt"], values["response"] = _parted(row[MESSAGES])
    for name in kind.answers:
        before, values[name] = _parted(values[name])
        if before:
            values["prompt"] = before
    values["prompt"] = _plain(values["prompt"])
    return values


def _plain(prompt: Any) -> Any:
    is_question = isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], dict)
    return prompt[0].get("content") if is_question and prompt[0].get("role") == "user" else prompt


def _parted(value: Any) -> tuple[Any, Any]:
    """A conversation's prompt and last message; a text has no prompt in front."""
    return (value[:-1], value[-1:]) if isinstance(value, list) else (None, value)
