"""`rlhf data`: add data of one's own, compare them with an earlier version."""

import argparse
import os
from pathlib import Path

from rlcore.exit_codes import DONE
from tasks.commands.running import enter_checkout
from tasks.intake.data_sets import TEXT_COLUMNS, Added, FileDifference, add, difference, name_of, source_in_use
from tasks.records import artifacts
from tasks.records.processes import held
from tasks.records.reachable import answers
from tasks.service.services import prefect_url

OPTIONAL = {"demonstrations"}
"""Kinds that a policy can be trained without, from a start model that answers already."""
WIDTH = 160
"""Most characters of a row that are shown."""


def data(parser: argparse.ArgumentParser) -> None:
    """Add data of your own, compare them with an earlier version."""
    verbs = parser.add_subparsers(metavar="verb", required=True)
    adding = verbs.add_parser("add", help="add the rows of a file, and let DVC keep them", description=_add.__doc__)
    adding.add_argument("file", metavar="FILE", help="JSON Lines: one JSON object on each line")
    adding.add_argument("--kind", choices=TEXT_COLUMNS, help="of the rows; by default their columns tell")
    adding.add_argument("--replace", action="store_true", help="take away the rows of this kind that are there")
    adding.set_defaults(run=_add)
    comparing = verbs.add_parser(
        "diff", help="what differs from a git revision", description=_diff.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    comparing.add_argument("revision", metavar="REV", help="a commit, a branch, a tag")
    comparing.add_argument("--samples", metavar="N", type=int, default=3, help="rows shown of each sort, 3 by default")
    comparing.set_defaults(run=_diff)
    for verb in (adding, comparing):
        verb.add_argument("--name", help="of the data set, a folder under data/raw; by default the one in use")


def _add(arguments: argparse.Namespace) -> int:
    """Add rows to data/raw/NAME, let DVC keep the result, and tell the Prefect server, which starts a retraining.

    Rows that are there already are left out. The kinds are demonstrations (prompt, response), preferences (prompt,
    chosen, rejected) and prompts (prompt).
    """
    file = Path(arguments.file).resolve()
    root = enter_checkout()
    source = source_in_use(root)
    name = arguments.name or name_of(source)
    with held(root / artifacts.RUN_LOCK, lambda owner: print(f"waiting for {owner}", flush=True)):
        added = add(file, name, arguments.kind, root, replace=arguments.replace)
    repeated = f", {added.repeated} were there already" if added.repeated else ""
    print(f"{added.folder}/{added.kind}.jsonl: {added.rows} rows added{repeated}; {added.total} in all")
    print(f"md5 {added.md5}, kept by DVC")
    if added.empty:
        print(f"still empty: {', '.join(f'{kind}.jsonl' for kind in added.empty)}")
    print(f"next: git add {added.folder}.dvc {added.folder.parent}/.gitignore && git commit")
    print(f"next: rlhf pipeline run{'' if source == added.folder else f' --set validate.source={added.folder}'}")
    if set(added.empty) <= OPTIONAL:
        _tell_server(root, added)
    return DONE


def _diff(arguments: argparse.Namespace) -> int:
    """Rows that were added, removed or changed since a git revision. A changed row kept its prompt.

    To train on the data of a revision again:
      git checkout REV -- data/raw/NAME.dvc && dvc checkout data/raw/NAME.dvc && rlhf pipeline run
    """
    root = enter_checkout()
    name = arguments.name or name_of(source_in_use(root))
    for found in difference(arguments.revision, name, root):
        print(_headline(found))
        for sign, rows in (("+", found.added), ("-", found.removed)):
            for row in rows[: arguments.samples]:
                print(f"  {sign} {_cut(row)}")
        for before, after in found.changed[: arguments.samples]:
            print(f"  ~ {_cut(before)}\n    {_cut(after)}")
    return DONE


def _headline(found: FileDifference) -> str:
    parts = (("added", found.added), ("removed", found.removed), ("changed", found.changed))
    said = ", ".join(f"{len(rows)} {word}" for word, rows in parts if rows) or "unchanged"
    return f"{found.name}: {said}; {found.before} rows then, {found.after} here"


def _cut(row: str) -> str:
    return row if len(row) <= WIDTH else f"{row[: WIDTH - 1]}…"


def _tell_server(root: Path, added: Added) -> None:
    """Emit `rlhf.data.added` where a Prefect server listens."""
    url = prefect_url(root)
    if url is None:
        return
    if not answers(f"{url}/health"):
        print(f"Prefect at {url} does not answer, so no retraining begins by itself.")
        return
    os.environ["PREFECT_API_URL"] = url
    from tasks.service.deployments import announce_data

    announce_data(str(added.folder), added.md5, added.rows)
    print(f"Prefect at {url} knows: retraining/nightly begins if it is deployed there.")
