"""Tool calls that a policy writes into its turns: found, checked, run, and answered whatever happens."""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from rlcore.environments.episode_protocol import EpisodeEnvironment
from rlcore.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_KEYS = {"name", "arguments"}


class Tools:
    """The tools of an environment, and what they answer to the calls of a policy.

    A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in the text of a turn; a turn may hold several.

    Args:
        environment: its `get_tools` gives function schemas. Its `call_tool` runs them, where it has one.

    Attributes:
        schemas: what the policy is offered.
        runnable: whether the environment runs calls; else they are text for `score_episode`.

    Raises:
        ConfigError: a schema has no name, two share one, or there is a `call_tool` and no tool.
    """

    def __init__(self, environment: EpisodeEnvironment):
        self._environment = environment
        self._source = type(environment).__name__
        self._call_tool = getattr(environment, "call_tool", None)
        self.schemas = list(environment.get_tools())
        self.runnable = self._call_tool is not None
        self._names = [_name_of(schema, self._source) for schema in self.schemas]
        self._logged: set[tuple[str, str]] = set()
        if len(set(self._names)) < len(self._names):
            raise ConfigError(f"{self._source}.get_tools(): found the names {self._names}, expected different ones.")
        if self.runnable and not self.schemas:
            raise ConfigError(f"{self._source} has call_tool(), but get_tools() offers no tool. Return its schema.")

    def called_in(self, turn: str) -> bool:
        """Whether a turn calls tools that run."""
        return self.runnable and _CALL.search(turn) is not None

    def answers(self, turn: str, case_idx: int) -> list[dict[str, str]]:
        """What the tools answer to the calls in a turn, as messages with the role `tool`; empty without a call.

        A call that is malformed or names no tool, and one whose tool raises, are answered with an error that the policy
        reads. An exception is logged the first time that a tool raises one of its class.

        Raises:
            DataError: a tool returned something else than text.
        """
        return [self._answer(body, bool(closing), case_idx) for body, closing in _CALL.findall(turn)]

    def _answer(self, body: str, closed: bool, case_idx: int) -> dict[str, str]:
        call, fault = _parsed(body) if closed else ({}, "the call has no </tool_call>")
        name = call.get("name", "unknown")
        if fault is None and name not in self._names:
            fault = f"found no tool {name!r}, expected one of {', '.join(self._names)}"
        content = self._run(name, call["arguments"], case_idx) if fault is None else f"Error: {fault}."
        return {"role": "tool", "name": name, "content": content}

    def _run(self, name: str, arguments: Mapping[str, Any], case_idx: int) -> str:
        assert self._call_tool is not None
        try:
            content = self._call_tool(name, arguments, case_idx)
        except Exception as error:  # noqa: BLE001 - arguments are the policy's, so any error of a tool is its to read
            kind = type(error).__name__
            if (name, kind) not in self._logged:
                self._logged.add((name, kind))
                logger.warning("%s: tool %r raised %s for %r.", self._source, name, kind, arguments, exc_info=True)
            return f"Error: {kind}: {error}"
        if not isinstance(content, str):
            raise DataError(f"{self._source}.call_tool({name!r}) returned {content!r}, expected text. Return a string.")
        return content


def _parsed(body: str) -> tuple[dict[str, Any], str | None]:
    """The call in a body and None, or what could be read of it and the fault."""
    try:
        call = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return {}, f"the call is no JSON ({error})"
    if not isinstance(call, dict) or set(call) != _KEYS:
        found = sorted(call) if isinstance(call, dict) else type(call).__name__
        return {}, f"found {found}, expected an object with name and arguments"
    if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
        return {}, "expected a text as name and an object as arguments"
    return call, None


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _name_of(schema: object, source: str) -> str:
    function = schema.get("function", schema) if isinstance(schema, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{source}.get_tools(): found {schema!r}, expected a schema such as "
            '{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}.'
        )
    return name
