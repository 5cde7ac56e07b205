"""A folder with low-rank adapters alone."""

import shutil
from pathlib import Path

from rlcore.checkpoint import publish
from rlcore.models import ADAPTER_FOLDER
from rlcore.training_record import RECORD

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
)


def keep_adapter_alone(folder: Path) -> None:
    """Replace a model folder, whose weights hold the adapters, by its adapters, its tokenizer and its record."""
    with publish(folder) as draft:
        shutil.copytree(folder / ADAPTER_FOLDER, draft, dirs_exist_ok=True)
        for pattern in (*TOKENIZER_FILES, RECORD):
            for file in folder.glob(pattern):
                shutil.copy2(file, draft)
