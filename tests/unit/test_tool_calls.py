"""Calls in a turn: run when they are right, answered with an error when not, and never the end of a training."""

import logging
from typing import Any

import pytest

from rlcore.environments import Tools
from rlcore.errors import ConfigError, DataError
from tests.support.tools import schema


class Desk:
    """Tools that tell what they were called with."""

    def __init__(self, schemas: list[Any] | None = None):
        self.schemas = [schema("add"), schema("fail")] if schemas is None else schemas
        self.calls: list[tuple[str, dict, int]] = []

    def get_tools(self) -> list[Any]:
        return self.schemas

    def call_tool(self, name: str, arguments: dict[str, Any], case_idx: int) -> str:
        self.calls.append((name, arguments, case_idx))
        if name == "fail":
            raise LookupError(arguments["why"])
        return arguments["a"] + arguments["b"]


class TextOnly(Desk):
    call_tool = None


def call(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def contents(turn: str) -> list[str]:
    return [answer["content"] for answer in Tools(Desk()).answers(turn, 0)]


def test_a_call_is_run_for_its_case_and_answered_as_a_message():
    desk = Desk()
    turn = 'Let me see. <tool_call>\n{"name": "add", "arguments": {"a": "1", "b": "2"}}\n</tool_call> Well.'
    assert Tools(desk).answers(turn, 5) == [{"role": "tool", "name": "add", "content": "12"}]
    assert desk.calls == [("add", {"a": "1", "b": "2"}, 5)]


def test_several_calls_are_answered_in_their_order():
    turn = "".join(call(f'{{"name": "add", "arguments": {{"a": "x", "b": "{b}"}}}}') for b in "yz")
    assert contents(turn) == ["xy", "xz"]


@pytest.mark.parametrize("turn", ["", "add(1, 2)", "</tool_call>", '{"name": "add", "arguments": {}}'])
def test_text_without_a_call_is_none(turn):
    tools = Tools(Desk())
    assert not tools.called_in(turn)
    assert tools.answers(turn, 0) == []


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        (call("add"), "the call is no JSON (Expecting value"),
        (call(""), "the call is no JSON"),
        (call("[" * 100_000), "the call is no JSON"),
        (call('{"name": "add", "arguments": {"a": NaN}}'), "NaN is no JSON number"),
        (call('{"name": "add", "arguments": {"a": ' + "1" * 5000 + "}}"), "the call is no JSON"),
        (call("[]"), "found list, expected an object with name and arguments"),
        (call('{"name": "add"}'), "found ['name'], expected"),
        (call('{"name": "add", "arguments": {}, "id": 1}'), "found ['arguments', 'id', 'name'], expected"),
        (call('{"name": 3, "arguments": {}}'), "expected a text as name"),
        (call('{"name": "add", "arguments": "{}"}'), "an object as arguments"),
        (call('{"name": "drop", "arguments": {}}'), "found no tool 'drop', expected one of add, fail"),
        ('<tool_call>{"name": "add", "arguments": {}}', "the call has no </tool_call>"),
        (call('{"name": "add", "arguments": {}}'), "KeyError: 'a'"),
        (call('{"name": "fail", "arguments": {"why": "full"}}'), "LookupError: full"),
    ],
)
def test_what_is_wrong_with_a_call_is_told_to_the_policy(turn, fault):
    (content,) = contents(turn)
    assert content.startswith("Error: ")
    assert fault in content


def test_an_error_of_a_tool_is_logged_the_first_time(caplog):
    tools = Tools(Desk())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tools.answers(call('{"name": "fail", "arguments": {"why": "full"}}'), 0)
        tools.answers(call('{"name": "add", "arguments": {}}'), 0)
    assert [record.getMessage() for record in caplog.records] == [
        "Desk: tool 'fail' raised LookupError for {'why': 'full'}.",
        "Desk: tool 'add' raised KeyError for {}.",
    ]
    assert all(record.exc_info for record in caplog.records)


def test_what_is_no_text_is_a_fault_of_the_environment():
    turn = call('{"name": "add", "arguments": {"a": 1, "b": 2}}')
    with pytest.raises(DataError, match=r"Desk.call_tool\('add'\) returned 3, expected text"):
        Tools(Desk()).answers(turn, 0)


def test_an_interrupt_is_not_an_answer():
    class Interrupted(Desk):
        def call_tool(self, name: str, arguments: dict[str, Any], case_idx: int) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tools(Interrupted()).answers(call('{"name": "add", "arguments": {}}'), 0)


def test_without_call_tool_calls_are_text():
    tools = Tools(TextOnly())
    assert [each["function"]["name"] for each in tools.schemas] == ["add", "fail"]
    assert not tools.runnable
    assert not tools.called_in(call('{"name": "add", "arguments": {}}'))


@pytest.mark.parametrize(
    ("schemas", "named"),
    [
        ([{"type": "function"}], "expected a schema such as"),
        ([{"name": ""}], "expected a schema such as"),
        (["add"], "expected a schema such as"),
        ([schema("add"), {"name": "add"}], r"found the names \['add', 'add'\], expected different ones"),
        ([], "get_tools\\(\\) offers no tool"),
    ],
)
def test_schemas_are_checked_at_once(schemas, named):
    with pytest.raises(ConfigError, match=named):
        Tools(Desk(schemas))
