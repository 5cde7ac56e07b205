"""Rules for chat messages: whose turn it is, and the prompt that two answers share."""

from collections.abc import Mapping
from typing import Any

from rlcore.cli.conversations import are_messages

ROLES = ("system", "user", "assistant", "tool")
_MAY_FOLLOW: Mapping[str | None, tuple[str, ...]] = {
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("tool", "assistant"),
}
"""Role, or None at the beginning → the roles that may come next."""


def unknown_role(messages: Any) -> str | None:
    """The first role that is none of ROLES."""
    roles = (message["role"] for message in messages) if are_messages(messages) else ()
    return next((role for role in roles if role not in ROLES), None)


def order_fault(messages: Any, ends_with: tuple[str, ...]) -> str | None:
    """What is wrong with whose turn it is.

    Args:
        messages: anything; what is no messages has no fault here.
        ends_with: roles that the last message may have.
    """
    if not are_messages(messages) or unknown_role(messages) is not None:
        return None
    before = None
    for number, message in enumerate(messages, start=1):
        # An answer may stand alone: what it answers is in another column.
        if message["role"] not in _MAY_FOLLOW[before] and len(messages) > 1:
            expected = " or ".join(_MAY_FOLLOW[before])
            place = f"follows one of {before}" if before else "is the first"
            return f"Message {number} is of {message['role']} and {place}, expected {expected}."
        before = message["role"]
    if before not in ends_with:
        return f"The last message is of {before}, expected {' or '.join(ends_with)}. Check that no columns are swapped."
    return None


def empty_message(messages: Any) -> int | None:
    """Number, from 1, of the first message without content. One that calls a tool needs none."""
    if not are_messages(messages):
        return None
    for number, message in enumerate(messages, start=1):
        if not message["content"].strip() and not message.get("tool_calls"):
            return number
    return None


def prompt_fault(prompt: Any, chosen: Any, rejected: Any) -> str | None:
    """Why two answers do not answer the same prompt; None where they do, or where a value has a wrong form."""
    values = [value for value in (chosen, rejected) if isinstance(value, list)]
    if not values or not all(map(are_messages, values)):
        return None
    before = [value[:-1] for value in values]
    if len(before) == 2 and before[0] != before[1]:
        return "chosen and rejected answer different conversations."
    if prompt is None:
        return None if len(before) == 2 and before[0] else "There is no prompt: neither a column nor earlier messages."
    own = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if before[0] and are_messages(own) and _plain(before[0])[-len(own) :] != _plain(own):
        return "The messages before the answer do not end with the column `prompt`. Leave one of them out."
    return None


def _plain(messages: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]
