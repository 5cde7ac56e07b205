"""The documents' best practices as checks: each warns or refuses by name, and can be silenced.

Pure functions of plain facts. Whoever starts a run gathers what is known and asks `findings`; what is not known is not
judged. Loads neither torch nor transformers.
"""

from rlcore.practices.evidence import is_fine_tuned, parameter_count, recorded_accuracy
from rlcore.practices.facts import Facts, FullTraining, InRange, Names, PairFigures, ranges_of
from rlcore.practices.table import PRACTICES, Finding, Practice, findings, raise_refusals

__all__ = [
    "PRACTICES",
    "Facts",
    "Finding",
    "FullTraining",
    "InRange",
    "Names",
    "PairFigures",
    "Practice",
    "findings",
    "is_fine_tuned",
    "parameter_count",
    "raise_refusals",
    "ranges_of",
    "recorded_accuracy",
]
