"""`rlhf gc`: room on the disk."""

import argparse

from rlcore.exit_codes import DONE
from tasks.commands.running import enter_checkout, say
from tasks.running.plan_table import size


def gc(parser: argparse.ArgumentParser) -> None:
    """Remove what only old pipeline runs need."""
    parser.add_argument(
        "--keep", metavar="N", type=int, required=True, help="how many of the newest pipeline runs stay whole"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    parser.description = _collect.__doc__
    parser.set_defaults(run=_collect)


def _collect(arguments: argparse.Namespace) -> int:
    """Remove data, models and files of old pipeline runs from this machine.

    Whatever their age, champion, challenger and every other version with an alias stay, with all that they were made
    from; so do the workspace and raw data. A DVC remote outside the checkout is left alone: what was pushed there can
    be pulled again.
    """
    root = enter_checkout()
    from tasks.running.housekeeping import collect

    removals = collect(root, arguments.keep, say, dry_run=arguments.dry_run)
    for kind in dict.fromkeys(removal.kind for removal in removals):
        of_kind = [removal for removal in removals if removal.kind == kind]
        print(f"{kind}: {len(of_kind)}, {size(sum(removal.size for removal in of_kind))}")
        if arguments.dry_run:
            for removal in of_kind:
                print(f"    {removal.name}  {size(removal.size)}")
    total = size(sum(removal.size for removal in removals))
    verb = "would be removed; nothing was" if arguments.dry_run else "removed"
    print(f"{len(removals)} things, {total}: {verb}." if removals else "Nothing to remove.")
    return DONE
