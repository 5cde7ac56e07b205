"""Reports of validations, as small or as large as a test wants them."""

from typing import Any

KIND = "preferences"


def finding(rule: str = "json", count: int = 1, **given: Any) -> dict[str, Any]:
    """Rows of one file that break a rule; as many are listed as a report lists."""
    rows = [
        {"row": row, "line": row + 1, "field": "chosen", "message": "Found 7.", "excerpt": f"text {row}"}
        for row in range(min(count, 100))
    ]
    return {
        "file": f"{KIND}.jsonl", "kind": KIND, "rule": rule, "severity": "error", "policy": "drop",
        "message": "Mend it.", "count": count, "rows": rows, **given,
    }  # fmt: skip


def report(*findings: dict[str, Any], rows: int = 1000, dropped: int = 0, **given: Any) -> dict[str, Any]:
    """A report with preference pairs alone."""
    counts = {"rows": rows, "dropped": dropped, "repaired": 0}
    edges = list(range(0, 90, 10))
    lengths = {
        "unit": "tokens", "mean": 20.25, "p50": 18.0, "p95": 60.0, "max": 79,
        "histogram": {"edges": edges, "counts": [rows - dropped, 0, 5, 0, 0, 0, 0, 1]},
    }  # fmt: skip
    return {
        "unit": "tokens",
        "tokenizer": "data/models/sft",
        "max_tokens": 1024,
        "faults": [],
        "files": [
            {"file": f"{KIND}.jsonl", "kind": KIND, "format": "jsonl", "encoding": "utf-8", "valid": rows - dropped}
            | counts
        ],
        "counts": {KIND: {"kept": rows - dropped, **counts}},
        "splits": {KIND: {"train": rows - dropped - 20, "validation": 8, "held_out": 12}},
        "findings": list(findings),
        "leaks": [],
        "leak_shares": {
            "held_out_prompts": 12, "exact": {"count": 0, "share": 0.0}, "normalised": {"count": 0, "share": 0.0},
            "near": {"count": 0, "share": 0.0},
        },
        "lengths": {KIND: {"prompt": lengths, "chosen": lengths, "rejected": {}}},
        "distinct_prompts": {KIND: 700},
        "pairs": {
            "chosen_longer_share": 0.51, "objectives": ["helpful"], "agreement": {"count": 4, "mean": 0.75},
            "similarity": {"edges": [0.0, 0.5, 1.0], "counts": [3, 1]},
        },
        "duplicates": {KIND: {"exact": 1, "normalised": 2, "contradictions": 3, "near": None}},
        "scripts": {KIND: {"Latin": 0.9997, "Cyrillic": 0.0003}},
        "profile": {},
        **given,
    }  # fmt: skip
