"""`rlhf promote`, `rollback`, `lineage`, `reproduce`: which policy counts, and what it is made of."""

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rlcore.cli.stopping import Stopped
from rlcore.exit_codes import DONE, FAILED
from tasks.commands.running import enter_checkout, say, stoppable

if TYPE_CHECKING:
    from mlflow import MlflowClient

VERSION = "number of a version of rlhf-policy, or an alias"


def promote(parser: argparse.ArgumentParser) -> None:
    """Make a version of the policy the champion."""
    parser.description = _promote.__doc__
    parser.add_argument("version", metavar="VERSION", nargs="?", help=f"{VERSION}; by default the challenger")
    parser.add_argument(
        "--override", metavar="REASON", help="promote it although its gate speaks against it; the reason is kept"
    )
    parser.set_defaults(run=_promote)


def rollback(parser: argparse.ArgumentParser) -> None:
    """Make the champion before this one the champion again."""
    parser.description = _rollback.__doc__
    parser.set_defaults(run=_rollback)


def lineage(parser: argparse.ArgumentParser) -> None:
    """Show what a version was made of: parents, data, code, settings, runs."""
    parser.add_argument("version", metavar="VERSION", help=VERSION)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.description = _lineage.__doc__
    parser.set_defaults(run=_lineage)


def reproduce(parser: argparse.ArgumentParser) -> None:
    """Train a version again from its commit, settings and data, and compare the checkpoints."""
    parser.description = _reproduce.__doc__
    parser.add_argument("version", metavar="VERSION", help=VERSION)
    parser.set_defaults(run=_reproduce)


def _promote(arguments: argparse.Namespace) -> int:
    """Make a version the champion: the next runs are measured against it, and `rlhf serve` answers with it.

    Its checkpoint is hashed again first. Refused are a version that the gate refused, one that was measured against
    another champion, and any if the champion moves meanwhile.
    """
    from tasks.registry.promotion import promote

    with opened_registry() as (client, root):
        move = promote(client, root, arguments.version, arguments.override)
    if move is None:
        print("This version is the champion already.")
    else:
        before = f"before it was version {move.previous}" if move.previous else "there was none before"
        print(f"Version {move.version} of rlhf-policy is champion; {before}.")
        if not move.verified:
            print(f"It is not verified: {move.faults}.")
        if move.previous:
            print("undo: rlhf rollback")
    print("next: rlhf serve")
    return DONE


def _rollback(arguments: argparse.Namespace) -> int:
    """Make the champion before this one the champion again; once more goes one further back."""
    from tasks.registry.promotion import rollback

    with opened_registry() as (client, root):
        move = rollback(client, root)
    print(f"Version {move.version} of rlhf-policy is champion again; before it was version {move.previous}.")
    print(f"undo: rlhf promote {move.previous}")
    print("next: rlhf serve")
    return DONE


def _lineage(arguments: argparse.Namespace) -> int:
    """Print what a version was made of, as far back as the registry knows: parents, data, code, settings, runs."""
    from tasks.registry.lineage import ancestry, tree

    with opened_registry() as (client, _):
        found = ancestry(client, arguments.version)
    if arguments.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        Console().print(tree(found))
    return DONE


def _reproduce(arguments: argparse.Namespace) -> int:
    """Train a version again in a temporary clone: its commit, its settings, its data out of DVC, an empty cache.

    The exit code is 0 where the checkpoint has the same md5, 1 where it differs.
    """
    from tasks.registry.reproduction import reproduce

    try:
        with stoppable(), opened_registry() as (client, root):
            result = reproduce(client, root, arguments.version, say)
    except Stopped as stop:
        return stop.exit_code
    print(result)
    return DONE if result.same else FAILED


@contextmanager
def opened_registry() -> "Iterator[tuple[MlflowClient, Path]]":
    """The registry and the checkout, after entering it.

    Raises:
        TrackingFailed: MLflow does not answer, or refuses something within the block.
    """
    root = enter_checkout()
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    from tasks.records.tracking import connected, recording

    with recording():
        yield connected(), root
