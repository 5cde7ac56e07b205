"""What people paste from README.md and docs/ runs, prints what it says, and names settings and numbers that exist."""

import ast
import contextlib
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import datasets
import pytest
from pydantic import Field
from transformers import AutoModelForCausalLM

import rlcore
from rlcore.cli.main import main
from rlcore.configs import (
    DPOConfig,
    GRPOConfig,
    LoraConfig,
    ORPOConfig,
    PPOConfig,
    RewardModelConfig,
    SFTConfig,
    StageConfig,
)
from rlcore.exit_codes import DONE
from tests.contract.test_metrics_page import EXPLAINED
from tests.support import guides
from tests.support.checkout import ROOT
from tests.support.metric_names import matches

SETTINGS = ROOT / "docs" / "settings.py"
CONFIGS = {
    "sft": SFTConfig,
    "ppo": PPOConfig,
    "grpo": GRPOConfig,
    "dpo": DPOConfig,
    "reward": RewardModelConfig,
    "orpo": ORPOConfig,
}
RESULTS = dict.fromkeys(guides.GUIDES, "my-policy") | {"sft": "my-tuned-model", "reward": "my-reward"}
SECTIONS = ["Steps", "Data", "Script", "From the command line", "Reading the numbers", "Trouble", "Settings"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the first block of the library page builds."""
    folder = tmp_path_factory.mktemp("toy")
    with contextlib.chdir(folder):
        guides.run(guides.LIBRARY, count=1)
    return folder / "my-model"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The folder in which the whole library page ran, and the names that it left."""
    folder = tmp_path_factory.mktemp("library")
    with contextlib.chdir(folder):
        return folder, guides.run(guides.LIBRARY)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory. What `datasets` keeps of the files that it reads stays in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


def test_the_readme_trains_what_the_demo_left(toy: Path, folder: Path):
    shutil.copytree(toy, folder / "data/models/sft")
    guides.run(guides.PAGES["readme"])
    AutoModelForCausalLM.from_pretrained(folder / "my-policy")


def test_the_library_page_runs_from_top_to_bottom(library):
    folder, names = library
    for model in ("my-policy", "my-dpo-policy"):
        AutoModelForCausalLM.from_pretrained(folder / model)
    # four iterations, of which the run that went on did the last two
    assert len(names["whole"]["rewards"]) == 4
    assert len(names["rest"]["rewards"]) == 2


@pytest.mark.slow
def test_two_processes_print_the_numbers_of_one(library):
    folder, names = library
    ((program, *arguments),) = guides.commands(guides.LIBRARY)
    assert program == "torchrun"  # which is this module
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=300)
    history = ast.literal_eval(said.stdout)
    assert history.keys() == names["history"].keys()
    for key, values in history.items():
        assert values == pytest.approx(names["history"][key], rel=1e-5, abs=1e-5), key


@pytest.mark.parametrize("name", guides.GUIDES)
def test_a_guide_trains_and_leaves_its_model(name: str, toy: Path, folder: Path):
    shutil.copytree(toy, folder / "my-model")
    names = guides.run(guides.GUIDES[name])
    assert names["result"].model_dir == Path(RESULTS[name])
    assert (folder / RESULTS[name] / "config.json").is_file()
    assert any((folder / "my-run").iterdir()), "no checkpoint, although the page promises that the call goes on"
    ((program, *arguments),) = guides.commands(guides.GUIDES[name])
    assert program == "rlhf"
    assert main(arguments) == DONE
    assert (folder / "my-cli-model" / "config.json").is_file()


@pytest.mark.parametrize("name", guides.GUIDES)
def test_the_settings_of_a_guide_are_those_of_its_class(name: str):
    page = guides.GUIDES[name].read_text(encoding="utf-8")
    assert f"<!-- settings of {CONFIGS[name].__name__} -->" in page
    right = runpy.run_path(str(SETTINGS))["with_tables"](page)
    new_rows = "\n".join(sorted({*right.splitlines()} - {*page.splitlines()}))
    assert page == right, f"python docs/settings.py brings the table up to date. Rows that it changes:\n{new_rows}"


class Parent(StageConfig):
    model_name: str
    """A folder."""
    lora: LoraConfig | None = None
    """Adapters,
    or null."""


class Child(Parent):
    share: float = Field(0.5, gt=0, le=1)
    """Of this | of that."""
    unit: Literal["token", "sequence"] = "token"
    """What is counted."""


def test_a_row_of_settings_says_default_bounds_and_meaning():
    rows = runpy.run_path(str(SETTINGS))["table"](Child).splitlines()
    # what has to be given, what the class adds, what it shares; settings in settings below theirs
    assert rows[2:] == [
        "| `model_name` | required | text | A folder. |",
        "| `share` | `0.5` | number > 0, ≤ 1 | Of this \\| of that. |",
        '| `unit` | `"token"` | `"token"` or `"sequence"` | What is counted. |',
        "| `seed` | `0` | whole number ≥ 0, < 4294967296 | Seed of every random number of the stage. |",
        "| `lora` | `None` | `LoraConfig` or `None` | Adapters, or null. |",
        "| `lora.rank` | `16` | whole number ≥ 1 | Rank of the update of each weight matrix. |",
        "| `lora.alpha` | `32` | number > 0 | Scale: the update is multiplied by alpha / rank. |",
        '| `lora.target_modules` | `"all-linear"` | text or several texts | Module names to adapt, or "all-linear" for '
        "every linear layer but the output layer. |",
    ]


@pytest.mark.parametrize("name", guides.GUIDES)
def test_a_guide_has_every_section_and_five_troubles(name: str):
    sections = guides.sections(guides.GUIDES[name])
    assert [title for title in sections if title in SECTIONS] == SECTIONS
    assert len(guides.rows(sections["Trouble"])) == 5
    assert "```json" in sections["Data"]


@pytest.mark.parametrize("name", guides.GUIDES)
def test_every_number_of_a_guide_is_explained(name: str):
    numbers = guides.metric_names(guides.GUIDES[name])
    assert len(numbers) >= 5
    assert {number for number in numbers if not matches(number, EXPLAINED)} == set()


def test_the_library_page_lists_every_public_name():
    rows = guides.rows(guides.sections(guides.LIBRARY)["All names"])
    listed = [name.strip("`") for row in rows for name in row[1].split()]
    assert {*listed} ^ {*rlcore.__all__} == set()
    assert len(listed) == len(rlcore.__all__)


@pytest.mark.parametrize("page", [*guides.PAGES.values(), ROOT / "docs/metrics.md"], ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_somewhere(page: Path):
    assert guides.dead_links(page) == []


@pytest.mark.parametrize(
    ("promise", "keeps"),
    [("4", True), ("5", False), ("…", True), ("3… 4", False)],
    ids=["same", "other", "any", "part"],
)
def test_a_print_that_says_something_else_is_noticed(tmp_path: Path, promise: str, keeps: bool):
    page = tmp_path / "page.md"
    page.write_text(f"Text.\n\n```python\nx = 2\nprint(x + 2)  # {promise}\n```\n")
    expected = contextlib.nullcontext() if keeps else pytest.raises(AssertionError, match=r"page\.md:5: .* found '4'")
    with expected:
        guides.run(page)
