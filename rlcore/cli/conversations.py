"""Rows of text or chat messages as prompts and answers apart: what precedes the assistant's answer is its prompt."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlcore.errors import DataError

Messages = list[dict[str, str]]

MESSAGES, PROMPT = "messages", "prompt"


def with_one_type(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with all prompts as messages where one of them is; a column of a table has one type."""
    if all(isinstance(row[PROMPT], str) for row in rows):
        return rows
    return [row | {PROMPT: as_messages(row[PROMPT])} for row in rows]


def demonstrations(index: int, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row for each answer of a conversation, or the only one.

    Args:
        index: of the row, for errors.
        row: with `messages`, or `prompt` and `response`.

    Raises:
        DataError: the row has the wrong form.
    """
    if MESSAGES not in row:
        prompt, response = _prompt_and_answer(index, "response", row.get(PROMPT), row["response"])
        yield {PROMPT: prompt, "response": response}
        return
    messages = _checked(index, MESSAGES, row[MESSAGES])
    answers = [turn for turn, message in enumerate(messages) if turn and message["role"] == "assistant"]
    if not answers:
        raise DataError(f"Row {index}: found no answer of the assistant in {messages!r}. Drop or mend that row.")
    for turn in answers:
        yield {PROMPT: _plain(messages[:turn]), "response": messages[turn]["content"]}


def question(index: int, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The prompt of a row, without an answer that it may have, and the other columns.

    Raises:
        DataError: the row has the wrong form.
    """
    prompt = row[PROMPT]
    if isinstance(prompt, list):
        messages = _checked(index, PROMPT, prompt)
        prompt = _plain(messages[:-1] if messages[-1]["role"] == "assistant" else messages)
    yield {**row, PROMPT: prompt}


def pair(index: int, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Prompt and texts of a pair.

    Raises:
        DataError: the row has the wrong form, or chosen and rejected answer different conversations.
    """
    prompt, chosen = _prompt_and_answer(index, "chosen", row.get(PROMPT), row["chosen"])
    other, rejected = _prompt_and_answer(index, "rejected", row.get(PROMPT), row["rejected"])
    if prompt != other:
        raise DataError(
            f"Row {index}: chosen and rejected answer different conversations, {prompt!r} and {other!r}. Drop or mend "
            "that row."
        )
    yield {PROMPT: prompt, "chosen": chosen, "rejected": rejected}


def _prompt_and_answer(index: int, name: str, prompt: Any, answer: Any) -> tuple[Any, str]:
    """A prompt, once, and the text of an answer that may repeat it as messages."""
    if isinstance(prompt, list):
        prompt = _plain(_checked(index, PROMPT, prompt))
    elif prompt is not None or not isinstance(answer, list):
        require_text(index, PROMPT, prompt)
    if isinstance(answer, str):
        return prompt, answer
    messages = _checked(index, name, answer)
    if messages[-1]["role"] != "assistant":
        raise DataError(
            f"Row {index}, {name}: the last message is {messages[-1]!r}, expected the assistant's. Check that the "
            "columns are not swapped."
        )
    before, text = messages[:-1], messages[-1]["content"]
    if not before and prompt is None:
        raise DataError(f"Row {index}, {name}: found an answer without a prompt. Add a column {PROMPT}.")
    if before and prompt is not None and as_messages(prompt) != before[-len(as_messages(prompt)) :]:
        raise DataError(
            f"Row {index}, {name}: the messages before the answer, {before!r}, do not end with the prompt, {prompt!r}. "
            "Leave one of them out."
        )
    return (_plain(before) if before else prompt), text


def require_text(index: int, name: str, text: Any) -> None:
    """Let a text pass that is one, and not empty.

    Raises:
        DataError: otherwise.
    """
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"Row {index}, {name}: found {text!r}, expected text that is not empty. Drop or mend that row.")


def _checked(index: int, name: str, messages: Any) -> Messages:
    """Messages with role and content and nothing else."""
    if not are_messages(messages):
        raise DataError(
            f"Row {index}, {name}: found {messages!r}, expected text, or messages with `role` and `content`. Drop or "
            "mend that row."
        )
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def are_messages(value: Any) -> bool:
    """Whether a value is a list of messages, each with `role` and `content`, both text."""
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _plain(messages: Messages) -> str | Messages:
    """A single question is text, which every tokenizer can write."""
    is_question = len(messages) == 1 and messages[0]["role"] == "user"
    return messages[0]["content"] if is_question else messages


def as_messages(prompt: str | Messages) -> Messages:
    """A prompt as messages; a text is a question of the user."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
