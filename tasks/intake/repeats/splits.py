"""Which split a row belongs to: rows that share a group or a prompt never end up in two splits."""

import unicodedata
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from tasks.records.artifacts import Split


class Leak(NamedTuple):
    """Rows that belong together but were given two splits."""

    prompt: str
    """A prompt of the rows."""
    places: dict[Split, str]
    """Split → `file:line` of the first such row."""


@dataclass
class SplitTable:
    """Collects rows, then gives each its split.

    Rows are connected by an equal `group` or an equal prompt, after normalisation; what is connected shares a split. A
    row's own `split` decides for all that are connected to it. The others are ordered by a hash of group and seed: the
    first share is held out, the next is for validation. Neither the order of the rows nor their file matters.
    """

    held_out_share: float
    validation_share: float
    seed: int
    _parents: dict[int, int] = field(default_factory=dict)
    _given: dict[int, Leak] = field(default_factory=dict)

    def add(self, prompt: str, group: str | None, split: Split | None, place: str) -> int:
        """Take up a row that is at `file:line` and return the key under which `splits` knows it."""
        key = self._root(self._node("prompt", normalised(prompt)))
        if group is not None:
            key = self._join(key, self._root(self._node("group", group)))
        if split is not None:
            self._given.setdefault(key, Leak(prompt, {})).places.setdefault(split, place)
        return key

    def leaks(self) -> list[Leak]:
        """Connected rows that were given more than one split."""
        return [given for given in self._given.values() if len(given.places) > 1]

    def splits(self) -> dict[int, Split]:
        """Key → split, for every key that `add` returned. Call it when all rows were added and `leaks` is empty."""
        undecided = sorted({root for node in self._parents if (root := self._root(node)) not in self._given})
        held_out = round(self.held_out_share * len(undecided))
        validation = round(self.validation_share * len(undecided))
        chosen: dict[int, Split] = dict.fromkeys(undecided, "train")
        chosen.update(dict.fromkeys(undecided[:held_out], "held_out"))
        chosen.update(dict.fromkeys(undecided[held_out : held_out + validation], "validation"))
        chosen.update({root: next(iter(given.places)) for root, given in self._given.items()})
        return {node: chosen[self._root(node)] for node in self._parents}

    def _node(self, sort: str, name: str) -> int:
        digest = blake2b(f"{self.seed}/{sort}/{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        node = int.from_bytes(digest)
        self._parents.setdefault(node, node)
        return node

    def _root(self, node: int) -> int:
        while (parent := self._parents[node]) != node:
            self._parents[node] = self._parents[parent]
            node = parent
        return node

    def _join(self, first: int, second: int) -> int:
        # The smaller hash names the whole, so that the name does not depend on the order of the rows.
        root, other = sorted((first, second))
        self._parents[other] = root
        if root != other and other in self._given:
            given = self._given.pop(other)
            places = self._given.setdefault(root, Leak(given.prompt, {})).places
            for split, place in given.places.items():
                places.setdefault(split, place)
        return root


def normalised(prompt: str) -> str:
    """A prompt without differences of case, width of characters and white space."""
    # In ASCII no character has another form.
    text = prompt if prompt.isascii() else unicodedata.normalize("NFKC", prompt)
    return " ".join(text.casefold().split())
