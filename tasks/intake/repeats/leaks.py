"""Prompts that stand in training rows and in rows to measure on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.intake.repeats.near_duplicates import NearDuplicates
from tasks.intake.repeats.splits import Leak, normalised
from tasks.records.artifacts import Split

MATCHES = ("exact", "normalised")
SHOWN_CHARACTERS = 60
"""Of a prompt in a message."""
BATCH = 10_000
"""Prompts that are hashed at once."""


def described(leak: Leak) -> dict[str, Any]:
    """A leak as it stands in the report: rows that share a prompt or a group and were given several splits."""
    listed = " and ".join(f"{split} ({place})" for split, place in leak.places.items())
    shown = leak.prompt if len(leak.prompt) <= SHOWN_CHARACTERS else leak.prompt[:SHOWN_CHARACTERS] + "…"
    message = f"Prompt {shown!r} or its group: {listed}. Give these rows one split, or leave `split` out."
    return {
        "match": "normalised", "splits": list(leak.places), "places": leak.places, "prompt": shown, "message": message,
    }  # fmt: skip


@dataclass
class Overlap:
    """How many prompts to measure on stand in training rows, by the splits that rows name themselves."""

    _training: dict[str, set[int]] = field(default_factory=lambda: {match: set() for match in MATCHES})
    _measured: dict[str, set[int]] = field(default_factory=lambda: {match: set() for match in MATCHES})

    def add(self, prompt: str, split: Split | None) -> None:
        """Take up a row."""
        if split is not None:
            seen = self._training if split == "train" else self._measured
            seen["exact"].add(hash(prompt))
            seen["normalised"].add(hash(normalised(prompt)))

    def as_json(self) -> dict[str, Any]:
        """Count and share of the different prompts to measure on that stand in training rows."""
        counts = {match: len(self._training[match] & self._measured[match]) for match in MATCHES}
        totals = {match: len(self._measured[match]) for match in MATCHES}
        return {
            "held_out_prompts": totals["exact"],
            **{
                match: {"count": count, "share": count / totals[match] if count else 0.0}
                for match, count in counts.items()
            },
        }


class NearPrompts:
    """Different prompts, each with its place, for the search of nearly equal ones in other splits."""

    def __init__(self, least_similarity: float):
        self._near = NearDuplicates(least_similarity)
        self._seen: set[int] = set()
        self._keys: list[int] = []
        self._places: list[str] = []
        self._waiting: list[str] = []

    def add(self, prompt: str, key: int, place: str) -> None:
        """Take up the prompt of a row that is at `file:line` and that the split table knows under `key`."""
        digest = hash(prompt)
        if digest in self._seen:
            return
        self._seen.add(digest)
        self._keys.append(key)
        self._places.append(place)
        self._waiting.append(prompt)
        if len(self._waiting) >= BATCH:
            self._hand_over()

    def leaks(self, splits: Mapping[int, Split]) -> list[dict[str, Any]]:
        """Pairs of a training prompt and one of another split, as they stand in the report."""
        self._hand_over()
        found = []
        for first, second, similarity in self._near.pairs():
            sides = {splits[self._keys[number]]: self._places[number] for number in (first, second)}
            if len(sides) == 2 and "train" in sides:
                listed = " and ".join(f"{split} ({place})" for split, place in sides.items())
                message = f"Nearly equal prompts, similarity {similarity:.2f}: {listed}. Give both the same group."
                found.append(
                    {"match": "near", "splits": list(sides), "places": sides, "prompt": "", "message": message}
                )
        return found

    def _hand_over(self) -> None:
        self._near.add(self._waiting)
        self._waiting.clear()
