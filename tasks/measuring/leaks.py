"""Whether held-out prompts stand in what models were trained on."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.intake.repeats.splits import normalised
from tasks.intake.text.text_rows import text_rows


def leak_shares(held_out: Iterable[Mapping[str, Any]], training: Iterable[Path]) -> dict[str, float]:
    """Share of the distinct held-out prompts that stand in a file of training rows, as they are and normalised.

    Args:
        held_out: rows of the prompts that models are measured on, at least one.
        training: files whose rows have prompts too; one at a time is in memory.
    """
    prompts = {row["prompt"] for row in held_out}
    seen: set[str] = set()
    seen_normalised: set[str] = set()
    for path in training:
        for row in text_rows(path):
            seen.add(row["prompt"])
            seen_normalised.add(normalised(row["prompt"]))
    return {
        "data/leak_share_exact": sum(prompt in seen for prompt in prompts) / len(prompts),
        "data/leak_share": sum(normalised(prompt) in seen_normalised for prompt in prompts) / len(prompts),
    }
