"""The documents' Python blocks: how many there are, which of them run, and what is changed about them before."""

import re
from importlib import import_module
from types import ModuleType

import pytest

from rlcore import compat
from rlcore.errors import ConfigError
from tests.contract import (
    test_documents_cli,
    test_documents_environments,
    test_documents_pipeline,
    test_documents_rewards,
    test_documents_training,
)
from tests.support.documents import (
    CLI_PAGE,
    ENGLISH,
    EXEMPT,
    MODULE_PAGE,
    PORTUGUESE,
    PPO_PAGE,
    SPANISH,
    Page,
    python_blocks,
    text_of,
)


@pytest.mark.parametrize(("document", "count"), [(ENGLISH, 21), (PORTUGUESE, 21), (SPANISH, 21), (PPO_PAGE, 2)])
def test_so_many_blocks_are_found(shared, document, count):
    assert len(python_blocks(shared, document)) == count


@pytest.mark.parametrize("document", [PORTUGUESE, SPANISH])
def test_the_languages_hold_the_same_blocks(shared, document):
    # so running those of one page runs those of all three
    assert [block.code for block in python_blocks(shared, document)] == [
        block.code for block in python_blocks(shared, ENGLISH)
    ]


@pytest.mark.parametrize("document", [SPANISH, PPO_PAGE])
def test_the_listed_lines_leave_no_code_out(shared, document):
    listed = "".join(block.code for block in python_blocks(shared, document))
    code = re.compile(r"^(?:from|import|class|def|return|print\(|\w+ = )", re.MULTILINE)
    assert len(code.findall(listed)) == len(code.findall(text_of(shared, document)))


@pytest.mark.parametrize(
    ("names", "modules"),
    [
        (
            MODULE_PAGE,
            [
                test_documents_training,
                test_documents_rewards,
                test_documents_environments,
                test_documents_pipeline,
            ],
        ),
        (CLI_PAGE, [test_documents_cli]),
    ],
)
def test_each_block_has_a_test_of_its_name(names: tuple[str, ...], modules: list[ModuleType]):
    tests = {name.removeprefix("test_") for module in modules for name in vars(module)}
    assert set(names) <= tests


@pytest.mark.parametrize("name", EXEMPT)
def test_a_block_that_is_exempt_cannot_run(name, module_page, cli_page):
    page = module_page if name in MODULE_PAGE else cli_page
    with pytest.raises(SyntaxError):
        page.run(name)


def test_nothing_else_is_changed_about_a_block(shared, models, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    changed = set()
    for document, names in ((ENGLISH, MODULE_PAGE), (PPO_PAGE, CLI_PAGE)):
        page = Page(shared, document, names, models)
        for block in python_blocks(shared, document):
            before, after = block.code.splitlines(), page.runnable(block.code).splitlines()
            changed |= {line.strip() for line, new in zip(before, after, strict=True) if line != new}
    assert changed == {
        'model_name="google/gemma-2-2b",',
        'model_name="bert-base-uncased",',
        'model="google/gemma-3-270m",',
        'device="cuda",',
    }


@pytest.mark.parametrize("module", [name for name, home in compat.HOMES.items() if home])
def test_the_documented_modules_are_ours(module):
    compat.enable_autotrain_imports()
    alias = import_module(module)
    home = import_module(compat.HOMES[module])
    for name in getattr(home, "__all__", []):
        assert getattr(alias, name) is getattr(home, name)


def test_cuda_without_a_gpu_is_a_wrong_setting(models, monkeypatch):
    from rlcore import ForwardBackwardPipeline
    from rlcore.models import load_causal_lm

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="CUDA"):
        ForwardBackwardPipeline(load_causal_lm(models["google/gemma-2-2b"]), device="cuda")
