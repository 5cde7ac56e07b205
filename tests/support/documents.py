"""The Python blocks of the documents, run word for word under the documents' import names.

The documents are read from the folder `shared`. Two things about a block change before it runs: the names of hub models
become folders of tiny models, and `device="cuda"` becomes `device="cpu"` where there is no GPU.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.checkout import ROOT

ENGLISH, PORTUGUESE, SPANISH, PPO_PAGE = (
    "003_027023bc535066d1",
    "001_806562ccd1073e5c",
    "000_512230f1001680f9",
    "002_dd304cb4bf48ce4d",
)

# Documents 000 and 002 have no fences. First and last line of each block, counted from 1.
LINES = {
    SPANISH: [
        (21, 57), (63, 71), (77, 78), (82, 98), (115, 141), (145, 159), (167, 171), (177, 198), (202, 218), (224, 239),
        (245, 263), (269, 297), (301, 318), (322, 345), (351, 364), (368, 374), (380, 408), (421, 432), (436, 453),
        (459, 464), (470, 481),
    ],
    PPO_PAGE: [(29, 53), (124, 130)],
}  # fmt: skip

MODULE_PAGE = (
    "ppo_config", "ppo_architecture", "kl_controller", "ppo_training", "dpo_config", "preference_dataset",
    "reference_free", "reward_model", "reward_training", "pairwise", "multi_objective", "dataclasses",
    "text_environment", "multi_objective_environment", "preference_environment", "built_in_environments", "pipeline",
    "custom_loss", "client", "checkpoint", "sampling",
)  # fmt: skip
"""Names of the blocks of the RL module's page, in the three languages."""

CLI_PAGE = ("python_api", "multi_objective_rewards")
"""Names of the Python blocks of the PPO page."""

NEEDS = {
    "ppo_training": "ppo_config",
    "preference_dataset": "dpo_config",
    "reference_free": "dpo_config",
    "reward_training": "reward_model",
    "pairwise": "reward_model",
    "multi_objective": "reward_model",
    "custom_loss": "pipeline",
    "checkpoint": "pipeline",
    "sampling": "pipeline",
}
"""The block whose names a block uses."""

EXEMPT = {
    "ppo_architecture": "the body of the class ValueHead is a comment",
    "multi_objective_rewards": "a bare ... stands for further arguments",
}
"""Blocks that Python cannot run, and why."""


@dataclass(frozen=True)
class Block:
    """A Python block and where it begins."""

    document: str
    first_line: int
    code: str


def text_of(shared: Path, document: str) -> str:
    """A document's text."""
    return (shared / "seeds" / f"{document}.txt").read_text(encoding="utf-8")


def python_blocks(shared: Path, document: str) -> list[Block]:
    """The Python blocks of a document: between fences, or at the lines listed above."""
    text = text_of(shared, document)
    if document in LINES:
        lines = text.splitlines(keepends=True)
        return [Block(document, first, "".join(lines[first - 1 : last])) for first, last in LINES[document]]
    found = re.finditer(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [Block(document, text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


class Page:
    """The blocks of a document by name.

    Args:
        shared: the folder with the documents.
        document: which one.
        names: of its blocks, in order.
        models: folder to load for each hub name.
    """

    def __init__(self, shared: Path, document: str, names: tuple[str, ...], models: dict[str, Path]):
        self._blocks = dict(zip(names, python_blocks(shared, document), strict=True))
        self._models = models

    def run(self, name: str, **prepared: Any) -> dict[str, Any]:
        """Run a block, after the one whose names it uses; what is still undefined comes from `prepared`.

        Returns:
            the names that are defined afterwards.
        """
        names = prepared if name not in NEEDS else self.run(NEEDS[name], **prepared) | prepared
        block = self._blocks[name]
        # Line numbers in a stack trace are the document's.
        source = "\n" * (block.first_line - 1) + self.runnable(block.code)
        exec(compile(source, f"{block.document}.txt", "exec"), names)
        return names

    def code(self, name: str) -> str:
        """The code of a block as the document has it."""
        return self._blocks[name].code

    def runnable(self, code: str) -> str:
        """The code with tiny models and, where there is no GPU, with the CPU."""
        for hub_name, folder in self._models.items():
            code = code.replace(f'"{hub_name}"', repr(str(folder)))
        return code if torch.cuda.is_available() else code.replace('device="cuda"', 'device="cpu"')


def documented() -> dict[str, Any]:
    """The committed table of what the documents promise: `modules`, `parameters`, `returns`, `losses`, `rl_parameters`.

    A parameter is a name, or a name and its default. What a call returns is a shape, or shapes by key: [] is a number.
    """
    table: dict[str, Any] = json.loads((ROOT / "tests/contract/documented_api.json").read_text(encoding="utf-8"))
    return table
