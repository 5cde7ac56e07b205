r"""Whether a response gives the right answer to a problem in mathematics.

The answer of a response is, in this order:

1. the content of its last \boxed{} or \fbox{}; a box that is never closed is no answer,
2. the first value in the line behind the last "answer is", "answer:", "answer =", "####", or "A:" that begins a line,
3. the last value of the response.

Values are compared exactly, as fractions: 0.4 equals \frac{2}{5}, and 0.33 does not equal 1/3. Currencies and units are
read over. A number has to be worked out: 2 + 2 is not the answer 4.

A gold answer that is no number is compared with the text of the box, of the line, or of the response, blanks and
spelling aside; and as mathematics, by math-verify, with the box, with the formula behind the phrase, or with the last
formula of the response: x + 1 equals 1 + x, and 1/\sqrt{3} equals \frac{\sqrt{3}}{3}. Where a problem asks for a form,
such as a product of factors, that takes the other forms too. Words do not count: "correct" is the answer to nothing.
"""

import re

from rlcore.errors import DataError
from rlcore.reward_functions.expressions import same_expression
from rlcore.reward_functions.values import Value, first_value, last_value, plain_spelling, whole_value

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_CUE = re.compile(r"\banswer[*_ ]{0,5}(?:is|:|=)|####|^ ?A:", re.IGNORECASE | re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_ASSIGNMENT = re.compile(r"^[A-Za-z](?:_[0-9A-Za-z])? ?=(?!=) ?")
_FORMULA = re.compile(r"\$\$?([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_FORMULA_TAIL = 2000
"""Characters at the end of a response in which a formula is looked for. Searching all of it could take minutes."""


def answers_equal(text: str, gold: str) -> bool:
    """Whether the answer of a response equals the gold answer; no text makes it raise.

    Args:
        text: the response.
        gold: the right answer, or a whole solution that states it in a box or behind "####".

    Raises:
        DataError: one of the two is no text.
    """
    _require_texts(text, gold)
    gold_answer = _stated_text(gold) or gold
    expected = _whole_answer(gold_answer)
    if expected is None:
        return _same_spelling(text, gold_answer) or same_expression(_bare(_stated_expression(text)), _bare(gold_answer))
    found = answer_value(text)
    return found is not None and found.same(expected)


def answer_value(text: str) -> Value | None:
    """The answer of a response as a number; None where it states none.

    Raises:
        DataError: the response is no text.
    """
    _require_texts(text)
    box = _last_box(text)
    if box is not None:
        return _whole_answer(box)
    plain = plain_spelling(text)
    stated = _behind_last_cue(plain)
    value = None if stated is None else first_value(stated)
    return last_value(plain) if value is None else value


def states_answer(text: str) -> bool:
    """Whether a response states a number as its answer: in a closed box, or behind one of the phrases above.

    Raises:
        DataError: the response is no text.
    """
    _require_texts(text)
    box = _last_box(text)
    if box is not None:
        return _whole_answer(box) is not None
    stated = _behind_last_cue(plain_spelling(text))
    return stated is not None and first_value(stated) is not None


def _require_texts(*texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"Found {text!r} as an answer, expected text. Write numbers as text.")


def _same_spelling(text: str, gold_answer: str) -> bool:
    given = _stated_text(text) if _BOX.search(text) or _CUE.search(text) else text
    return bool(given) and _canonical(given or "") == _canonical(gold_answer)


def _stated_expression(text: str) -> str:
    """The content of the last box, the first formula behind the last cue, the last formula; else the line or text."""
    box = _last_box(text)
    if box is not None:
        return box
    tail = text[-_FORMULA_TAIL:]
    line = _behind_last_cue(tail)
    formulas = [next(filter(None, match.groups())) for match in _FORMULA.finditer(tail if line is None else line)]
    if formulas:
        return formulas[-1 if line is None else 0]
    return _SENTENCE_END.split(tail if line is None else line, maxsplit=1)[0]


def _stated_text(text: str) -> str | None:
    box = _last_box(text)
    if box is not None:
        return box
    line = _behind_last_cue(plain_spelling(text))
    return None if line is None else _SENTENCE_END.split(line, maxsplit=1)[0]


def _last_box(text: str) -> str | None:
    """Content of the last box, "" where it is not closed; None without a box."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":
        bare = re.match(r"[^\s$]*", text[start:])
        return bare[0].rstrip(".") if bare else ""
    depth, position = 0, start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : position]
        position += 1
    return ""


def _behind_last_cue(plain: str) -> str | None:
    """The rest of the line behind the last cue, or the next line that holds something; None without a cue."""
    cues = list(_CUE.finditer(plain))
    if not cues:
        return None
    return plain[cues[-1].end() :].lstrip().partition("\n")[0]


def _whole_answer(text: str) -> Value | None:
    return whole_value(_bare(text))


def _bare(text: str) -> str:
    """The answer without dollar signs of LaTeX, a variable it is assigned to, and a full stop."""
    plain = plain_spelling(text).strip()
    if plain.startswith("$") and plain.endswith("$"):
        plain = plain.strip("$ ")
    return _ASSIGNMENT.sub("", plain).strip().removesuffix(".")


def _canonical(text: str) -> str:
    """The text of an answer that is no number, without blanks, braces around a character, brackets around a letter."""
    packed = re.sub(r"\s|\$", "", _bare(text))
    packed = re.sub(r"\{([0-9A-Za-z])\}", r"\1", packed)
    return re.sub(r"^\(([A-Za-z])\)$", r"\1", packed)
