"""dvc.yaml names everything a stage depends on: code, data, lock file, parameters; and everything it makes."""

import ast
from pathlib import Path

import pytest

from tasks.records import artifacts
from tasks.records.parameters import SECTIONS, read_yaml
from tests.support.checkout import ROOT
from tests.support.closure import NAMED, import_closure

STAGES = read_yaml(ROOT / "dvc.yaml")["stages"]
WHOLE = tuple(name.replace(".", "/") for name in NAMED)
"""Folders that stand for all their files."""


def modules_of(stage):
    """Modules that a stage may run: the policy's is that of the algorithm."""
    return artifacts.POLICY_ALGORITHMS if stage == "policy" else (stage,)


def code_of(stage):
    """Code dependencies as dvc.yaml lists them: DVC fills in the algorithm in a path, but chooses no list by it."""
    modules = modules_of(stage)
    files = set().union(*(import_closure(f"tasks.{module}", ROOT) for module in modules))
    if stage == "policy":
        files = files - {f"tasks/{module}.py" for module in modules} | {"tasks/${algorithm}.py"}
    return sorted(set(shortened(files)))


def shortened(files):
    """Files of a sub-package of rlcore, and of WHOLE, stand as their folder."""
    for file in files:
        parts = file.split("/")
        folder = "/".join(parts[:2])
        yield folder if (parts[0] == "rlcore" and len(parts) > 2) or folder in WHOLE else file


def test_the_stages_are_the_known_ones_in_order():
    assert tuple(STAGES) == artifacts.STAGES


@pytest.mark.parametrize("stage", artifacts.STAGES)
def test_a_stage_runs_its_module(stage):
    module = "tasks.${algorithm}" if stage == "policy" else f"tasks.{stage}"
    assert STAGES[stage]["cmd"] == f"python -m {module}"


@pytest.mark.parametrize("stage", artifacts.STAGES)
def test_code_dependencies_are_the_import_closure(stage):
    expected = code_of(stage)
    listed = [path for path in STAGES[stage]["deps"] if path.startswith(("rlcore/", "tasks/"))]
    assert listed == expected, "replace them in dvc.yaml by:\n" + "\n".join(f"      - {path}" for path in expected)


def test_what_a_generator_imports_is_in_the_closure_although_a_setting_names_the_generator():
    # tasks.demos.tinystories samples with a model, inside a function.
    assert {"rlcore/sampling/engine.py", "rlcore/models/causal_lm.py"} <= import_closure("tasks.demo_data", ROOT)


@pytest.mark.parametrize("stage", artifacts.STAGES)
def test_the_lock_file_is_a_dependency(stage):
    assert "requirements.lock" in STAGES[stage]["deps"]
    assert (ROOT / "requirements.lock").is_file()


@pytest.mark.parametrize("stage", artifacts.STAGES)
def test_parameters_are_the_seed_and_the_section(stage):
    section = "${algorithm}" if stage == "policy" else stage
    assert {"seed", section} <= set(STAGES[stage]["params"])
    parameters = read_yaml(ROOT / "params.yaml")
    for algorithm in artifacts.POLICY_ALGORITHMS:
        for key in STAGES[stage]["params"]:
            value = parameters
            for part in key.replace("${algorithm}", algorithm).split("."):
                assert part in value, f"params.yaml has no {key}"
                value = value[part]


def test_the_policy_depends_on_the_choice_of_its_algorithm_and_of_its_reward():
    assert {"algorithm", "reward_function"} <= set(STAGES["policy"]["params"])
    assert set(artifacts.POLICY_ALGORITHMS) <= set(SECTIONS)


@pytest.mark.parametrize("algorithm", artifacts.POLICY_ALGORITHMS)
def test_what_an_algorithm_does_not_read_is_known(algorithm):
    # The stage lists what any of them reads; the record of a run says what its own algorithm read.
    listed = {Path(path) for path in STAGES["policy"]["deps"] if path.startswith("data/")}
    source = (ROOT / "tasks" / f"{algorithm}.py").read_text()
    read = {path for path in listed for used in used_paths(source) if used.is_relative_to(path)}
    start = Path(read_yaml(ROOT / "params.yaml")[algorithm]["model_name"])
    assert listed - read - {start} == set(artifacts.UNREAD[algorithm])


@pytest.mark.parametrize("stage", artifacts.STAGES)
def test_data_dependencies_are_outputs_of_earlier_stages(stage):
    earlier = [Path(out) for name in artifacts.STAGES[: artifacts.STAGES.index(stage)] for out in outputs(name)]
    # The champion is put there before the run, by md5; the raw data may be the user's own.
    earlier += [artifacts.CHAMPION_DIR, Path("${validate.source}")]
    data = [Path(path) for path in STAGES[stage]["deps"] if path.startswith(("data/", "${"))]
    for path in data:
        assert any(path.is_relative_to(out) for out in earlier), f"nothing makes {path}"


@pytest.mark.parametrize("stage", artifacts.STAGES)
def test_paths_that_a_stage_module_names_are_declared(stage):
    # A path that a module reads or writes without DVC knowing would be missing after `dvc pull`, or stale.
    declared = [Path(path) for path in (*STAGES[stage]["deps"], *outputs(stage))]
    for module in modules_of(stage):
        for path in used_paths((ROOT / "tasks" / f"{module}.py").read_text()):
            assert any(path.is_relative_to(each) for each in declared), f"{module} uses {path}"


@pytest.mark.parametrize("stage", artifacts.STAGES)
def test_trace_and_samples_are_outputs(stage):
    assert str(artifacts.TRACES[stage]) in outputs(stage)
    assert (f"data/metrics/{stage}-samples.jsonl" in outputs(stage)) == (stage in artifacts.SAMPLED)


def test_outputs_are_ignored_by_git_and_cached_by_dvc():
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.startswith("/")]
    for stage in artifacts.STAGES:
        for out in outputs(stage):
            assert any(Path(out).is_relative_to(folder) for folder in ignored), f"git would show {out}"


def test_bytecode_never_changes_a_dependency():
    assert {"__pycache__/", "*.pyc"} <= set((ROOT / ".dvcignore").read_text().split())


def outputs(stage):
    """Paths only: an output with options (cache: false) would be a mapping and fail here."""
    return [*STAGES[stage]["outs"], *STAGES[stage].get("metrics", [])]


def used_paths(source):
    """Paths below data/ that the source takes from tasks.records.artifacts: `NAME`, or of a table `NAME["key"]`."""
    tree = ast.parse(source)
    imported = {
        alias.name: getattr(artifacts, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "tasks.records.artifacts"
        for alias in node.names
    }
    tables = {name: value for name, value in imported.items() if isinstance(value, dict)}
    paths = [value for value in imported.values() if isinstance(value, Path)]
    entries = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)]
    for node in entries:
        if isinstance(node.slice, ast.Constant) and node.value.id in tables:
            paths.append(tables[node.value.id][node.slice.value])
    # A table of which not one entry alone is taken is used as a whole.
    picked = {id(node.value) for node in entries if isinstance(node.slice, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in tables and id(node) not in picked:
            paths += tables[node.id].values()
    return [path for path in paths if path.is_relative_to(artifacts.DATA)]


def test_used_paths_are_found_in_every_form():
    names = "SFT_DIR, TRACES, PROMPTS, PREFERENCES, read_rows"
    source = f"from tasks.records.artifacts import {names}\nTRACES['sft'], PROMPTS[split], read(PREFERENCES)"
    pairs = {f"data/validated/preferences/{split}.jsonl" for split in artifacts.SPLITS}
    prompts = {f"data/validated/prompts/{split}.jsonl" for split in artifacts.SPLITS}
    assert {str(path) for path in used_paths(source)} == {
        "data/models/sft",
        "data/metrics/sft.jsonl",
        *prompts,
        *pairs,
    }
