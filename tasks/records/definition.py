"""What `dvc.yaml` says of a stage, `${…}` filled in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.records import artifacts
from tasks.records.parameters import read_yaml


@dataclass(frozen=True)
class Definition:
    """A stage of `dvc.yaml`.

    Attributes:
        cmd: what DVC runs.
        deps, outs: paths; metrics and plots that are outputs count among them.
        params: the parameters that the stage depends on, by their name in `dvc.yaml`.
    """

    cmd: str = ""
    deps: tuple[str, ...] = ()
    outs: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)


def definition(name: str, root: Path, parameters: Mapping[str, Any] | None = None) -> Definition:
    """A stage of `dvc.yaml`; an empty one where there is no such file.

    Args:
        name: of the stage.
        root: the checkout.
        parameters: its settings; by default those of `params.yaml`.
    """
    if not (root / artifacts.PIPELINE).is_file():
        return Definition()
    stage = read_yaml(root / artifacts.PIPELINE).get("stages", {}).get(name, {})
    values = read_yaml(root / artifacts.PARAMS) if parameters is None else parameters

    def value_of(key: str) -> Any:
        value: Any = values
        for part in key.split("."):
            value = value[part]
        return value

    def filled(kind: str) -> tuple[str, ...]:
        names = [name if isinstance(name, str) else next(iter(name)) for name in stage.get(kind, [])]
        return tuple(fill(name) for name in names)

    def fill(text: str) -> str:
        return re.sub(r"\$\{([\w.]+)\}", lambda match: str(value_of(match[1])), text)

    outs = (*filled("outs"), *filled("metrics"), *filled("plots"))
    params = {key: value_of(key) for key in filled("params")}
    return Definition(fill(stage.get("cmd", "")), filled("deps"), outs, params)
