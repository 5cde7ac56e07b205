"""`rlhf data`: add data of one's own, compare them with an earlier version."""

import argparse
import os
from pathlib import Path

from rlcore.exit_codes import DONE
from tasks.commands.data_check import CHECK, add_check, add_reading
from tasks.commands.running import enter_checkout
from tasks.intake.data_sets import Added, FileDifference, add, difference, name_of, source_in_use
from tasks.intake.kinds import ALIASES, columns_of_kinds
from tasks.records import artifacts
from tasks.records.processes import held
from tasks.records.reachable import answers
from tasks.service.services import prefect_url

OPTIONAL = {"demonstrations"}
"""Kinds that a policy can be trained without, from a start model that answers already."""
WIDTH = 160
"""Most characters of a row that are shown."""


def data(parser: argparse.ArgumentParser) -> None:
    """Check data of your own, add them, compare them with an earlier version."""
    verbs = parser.add_subparsers(metavar="verb", required=True)
    adding = verbs.add_parser(
        "add", help="add the rows of a file, and let DVC keep them",
        description=f"{_add.__doc__}The columns of each kind: {columns_of_kinds()}.",
    )  # fmt: skip
    adding.add_argument(
        "origin", metavar="FILE",
        help="JSON Lines, a JSON list, CSV or Parquet, perhaps packed by gzip; a folder of such files; "
        "a data set of the hub, owner/name or owner/name:split",
    )  # fmt: skip
    add_reading(adding)
    adding.add_argument("--replace", action="store_true", help="take away the rows of this kind that are there")
    adding.set_defaults(run=_add)
    add_check(verbs.add_parser("check", help="look at files of rows, and say what to mend", description=CHECK))
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

    Rows that are there already are left out. The rows are kept as JSON Lines.
    """
    # A name on the hub is no path, and stays as it is.
    path = Path(arguments.origin)
    origin = path.resolve() if path.exists() else arguments.origin
    root = enter_checkout()
    source = source_in_use(root)
    name = arguments.name or name_of(source)
    kind = ALIASES.get(arguments.kind, arguments.kind)
    with held(root / artifacts.RUN_LOCK, lambda owner: print(f"waiting for {owner}", flush=True)):
        added = add(origin, name, kind, root, replace=arguments.replace, encoding=arguments.encoding)
    rows = "1 row" if added.rows == 1 else f"{added.rows} rows"
    repeated = f", {added.repeated} {'was' if added.repeated == 1 else 'were'} there already" if added.repeated else ""
    print(f"{added.folder}/{added.kind}.jsonl: {rows} added{repeated}; {added.total} in all")
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
