"""A parser whose errors are one line that says what to change."""

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from rlcore.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """ArgumentParser without abbreviations: a flag that is not known is answered with the nearest that is.

    An underscore in a flag counts as a dash.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse does it; here, where the parser of the command is known, nothing unknown passes."""
        given = None if args is None else [_dashed(text) for text in args]
        parsed, unknown = super().parse_known_args(given, namespace)
        if unknown:
            self.error(self._about(unknown))
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Raise the message instead of printing the usage.

        Raises:
            ConfigError: always.
        """
        command = self.prog.partition(" ")[2]
        end = "" if message.endswith((".", "?")) else "."
        raise ConfigError(f"{command}: {message}{end}" if command else f"{message}{end}")

    def _about(self, texts: Sequence[str]) -> str:
        flag = texts[0].partition("=")[0]
        if not flag.startswith("-"):
            return f"found {' '.join(texts)!r}, expected flags. Put a value with blanks into quotes"
        near = difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.6)
        advice = f"Did you mean {near[0]}?" if near else f"See {self.prog} --help"
        return f"there is no flag {flag}. {advice}"


def _dashed(text: str) -> str:
    flag, equals, value = text.partition("=")
    return f"{flag.replace('_', '-')}{equals}{value}" if flag.startswith("--") and " " not in flag else text
