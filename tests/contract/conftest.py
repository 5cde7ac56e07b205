"""The documents, ready to run in a temporary folder."""

from pathlib import Path

import pytest

from rlcore.compat import enable_autotrain_imports
from tests.support import stand_ins
from tests.support.documents import CLI_PAGE, ENGLISH, MODULE_PAGE, PPO_PAGE, Page


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each hub model that the documents name."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "google/gemma-2-2b": stand_ins.gemma2(folder / "gemma2"),
        "google/gemma-3-270m": stand_ins.gemma3(folder / "gemma3"),
        "bert-base-uncased": stand_ins.bert(folder / "bert"),
    }


@pytest.fixture
def module_page(shared: Path, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """The page of the RL module, in English; the other languages hold the same blocks."""
    enable_autotrain_imports()
    monkeypatch.chdir(tmp_path)
    return Page(shared, ENGLISH, MODULE_PAGE, models)


@pytest.fixture
def cli_page(shared: Path, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """The page about PPO from the command line and from Python."""
    enable_autotrain_imports()
    monkeypatch.chdir(tmp_path)
    return Page(shared, PPO_PAGE, CLI_PAGE, models)
