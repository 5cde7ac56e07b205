"""Ranges that the documents recommend for a number. A value outside is used, with a warning."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel


@dataclass(frozen=True)
class Recommended:
    """The mark of a setting that has such a range, both ends within it."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def recommended_ranges(config_class: type[BaseModel]) -> Iterator[tuple[str, Recommended]]:
    """The settings of a class that have a recommended range, and the range."""
    for name, field in config_class.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, Recommended):
                yield name, mark
