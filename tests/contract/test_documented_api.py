"""The committed table of the documented API against the code: names, parameters, defaults, settings.

The rule: what is documented is there, under its name, with its default and at its place; what is there besides has a
default, so that every documented call works. What calls return is in test_documented_returns.
"""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

import rlcore
from rlcore.cli.params import LLMTrainingParams
from rlcore.cli.project import AutoTrainProject
from rlcore.compat import enable_autotrain_imports
from rlcore.configs import Recommended, recommended_ranges
from rlcore.errors import ConfigError
from rlcore.forward_backward.token_losses import loss_arguments, loss_named
from tests.support.checkout import ROOT
from tests.support.documents import CLI_PAGE, ENGLISH, EXEMPT, MODULE_PAGE, PPO_PAGE, documented, python_blocks, text_of

TABLE = documented()
COMMAND_LINE = {"LLMTrainingParams": LLMTrainingParams, "AutoTrainProject": AutoTrainProject}


def found(path: str):
    """The object behind a name of the table, such as `PPOTrainer.train`."""
    owner, _, method = path.partition(".")
    value = COMMAND_LINE[owner] if owner in COMMAND_LINE else getattr(rlcore, owner)
    return getattr(value, method) if method else value


def parameters_of(path: str) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(found(path)).parameters)
    parameters.pop("self", None)
    return parameters


def names_of(path: str) -> list[str]:
    """Names of the documented parameters."""
    return [each[0] if isinstance(each, list) else each for each in TABLE["parameters"][path]]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in TABLE["modules"].items() for name in names]
)
def test_a_documented_name_is_where_the_documents_import_it(module, name):
    enable_autotrain_imports()
    value = getattr(import_module(module), name)
    assert value is (COMMAND_LINE[name] if name in COMMAND_LINE else getattr(rlcore, name))


@pytest.mark.parametrize("path", TABLE["parameters"])
def test_documented_parameters_are_there_with_their_defaults(path):
    parameters = parameters_of(path)
    kinds = {parameter.kind for parameter in parameters.values()}
    listed = [each if isinstance(each, list) else [each] for each in TABLE["parameters"][path]]
    for name, *default in listed:
        if name == "**kwargs":
            assert inspect.Parameter.VAR_KEYWORD in kinds
            continue
        assert name in parameters
        if default:
            assert parameters[name].default == default[0]
            assert type(parameters[name].default) in (type(default[0]), float)
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    further = [each for name, each in parameters.items() if name not in names_of(path)]
    assert [str(each) for each in further if each.default is each.empty and each.kind not in optional] == []


@pytest.mark.parametrize("path", [path for path in TABLE["parameters"] if not path.endswith(("Config", "Params"))])
def test_documented_parameters_keep_their_places(path):
    # settings go by name alone; everything else may be called by position
    names = [name for name in names_of(path) if not name.startswith("*")]
    assert [name for name in parameters_of(path) if name in names] == names


def test_the_table_knows_every_argument_that_the_documents_pass(shared):
    known = {"LLMTrainingParams": set(LLMTrainingParams.model_fields)}
    for path in TABLE["parameters"]:
        known.setdefault(path.rpartition(".")[2], set()).update(names_of(path))
    known["model"] = known["forward"]  # a model is called through its variable
    known["forward_backward_custom"].add("my_param")  # goes to the loss, through **kwargs
    unknown = {}
    pages = {ENGLISH: MODULE_PAGE, PPO_PAGE: CLI_PAGE}
    for document, names in pages.items():
        for name, block in zip(names, python_blocks(shared, document), strict=True):
            calls = [] if name in EXEMPT else calls_in(block.code)
            unknown |= {called: passed for called, passed in calls if not passed <= known.get(called, set())}
    assert unknown == {}


def calls_in(code: str) -> list[tuple[str, set[str]]]:
    """What is called in the code, and the keywords that are passed."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return [
        (
            call.func.attr if isinstance(call.func, ast.Attribute) else str(getattr(call.func, "id", "")),
            {str(keyword.arg) for keyword in call.keywords},
        )
        for call in calls
    ]


@pytest.mark.parametrize("name", TABLE["losses"])
def test_losses_take_the_documented_keywords(name):
    import torch

    loss_named(name)
    keywords = TABLE["losses"][name]
    given = {keyword: torch.zeros(1, 2) for keyword in (*keywords["required"], *keywords["optional"])}
    loss_arguments(name, given, torch.device("cpu"))
    for missing in keywords["required"]:
        with pytest.raises(ConfigError, match="missing|needs|Found no"):
            loss_arguments(
                name, {keyword: given[keyword] for keyword in given if keyword != missing}, torch.device("cpu")
            )


def rows_of_the_ppo_page(text: str) -> dict[str, dict]:
    """Parameter, flag, default and range of the page's tables, whose cells follow each other without a space."""
    row = re.compile(
        r"^(rl_[a-z_]+)(--[a-z-]+)(None|True|False|\d+(?:\.\d+)?)(\D.*?)(?:\((\d[\d.]*)-(\d[\d.]*)\))?$", re.MULTILINE
    )
    return {
        name: {
            "flag": flag,
            "default": ast.literal_eval(default),
            "range": [float(low), float(high)] if low else None,
        }
        for name, flag, default, _, low, high in row.findall(text)
    }


def test_the_table_holds_every_row_of_the_ppo_page(shared):
    rows = rows_of_the_ppo_page(text_of(shared, PPO_PAGE))
    assert len(rows) == 20
    assert TABLE["rl_parameters"] == rows


@pytest.mark.parametrize("name", TABLE["rl_parameters"])
def test_rl_parameters_have_their_flag_default_and_range(name):
    row, field = TABLE["rl_parameters"][name], LLMTrainingParams.model_fields[name]
    assert row["flag"] == "--" + name.replace("_", "-")
    assert field.default == row["default"]
    recommended = dict(recommended_ranges(LLMTrainingParams)).get(name)
    assert recommended == (None if row["range"] is None else Recommended(*row["range"]))


def test_every_listed_name_resolves():
    assert [name for name in rlcore.__all__ if getattr(rlcore, name) is None] == []
    assert len(set(rlcore.__all__)) == len(rlcore.__all__)


def test_importing_the_package_or_the_settings_loads_no_torch():
    code = "import sys, rlcore, rlcore.compat, rlcore.cli.params, rlcore.cli.stages; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
