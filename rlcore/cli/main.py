"""The command `rlhf`. It owns `llm` and `doctor`; the other groups come from the entry points `rlhf.commands`.

An entry point is a function that fills a parser of its group and sets `run`, a function from the parsed arguments to an
exit code. The first line of its docstring is the help text.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points

from rlcore.cli.doctor import doctor
from rlcore.cli.llm import llm
from rlcore.cli.parser import Parser
from rlcore.errors import ConfigError, RLCoreError
from rlcore.exit_codes import exit_code_of

Group = Callable[[argparse.ArgumentParser], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `rlhf` and return its exit code. What a user can cause ends in one clear line, not in a stack trace."""
    try:
        arguments = _parser().parse_args(argv)
        return int(arguments.run(arguments))
    except KeyboardInterrupt as stop:
        return exit_code_of(stop)
    except RLCoreError as error:
        sys.stderr.write(f"rlhf: {' '.join(str(error).splitlines())}\n")
        return exit_code_of(error)
    except MemoryError as error:
        sys.stderr.write("rlhf: this machine: too little memory.\n")
        return exit_code_of(error)
    except OSError as error:
        sys.stderr.write(f"rlhf: {error.filename or 'this machine'}: {error.strerror or error}.\n")
        return exit_code_of(error)


def _parser() -> Parser:
    parser = Parser(prog="rlhf", description="Preference fine-tuning of language models.")
    groups = parser.add_subparsers(metavar="command", required=True)
    _add(groups, "llm", llm)
    _add(groups, "doctor", doctor)
    for entry in sorted(entry_points(group="rlhf.commands"), key=lambda entry: entry.name):
        _add(groups, entry.name, _load(entry))
    return parser


def _add(groups: "argparse._SubParsersAction[Parser]", name: str, group: Group) -> None:
    line = (group.__doc__ or "").strip().splitlines()[0]
    group(groups.add_parser(name, help=line, description=line))


def _load(entry: EntryPoint) -> Group:
    try:
        group: Group = entry.load()
    except ModuleNotFoundError as error:
        missing = error.name
    else:
        return group

    def unavailable(parser: argparse.ArgumentParser) -> None:
        """Needs a checkout."""

        def run(arguments: argparse.Namespace) -> int:
            raise ConfigError(
                f"`rlhf {entry.name}` needs a checkout: found no module {missing!r}. "
                "Clone the project and run `make demo` there."
            )

        parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        parser.set_defaults(run=run)

    return unavailable


if __name__ == "__main__":
    sys.exit(main())
