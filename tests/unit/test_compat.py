"""The documents' import names come on request, load nothing, and never hide a real package."""

import subprocess
import sys

from tests.support.checkout import ROOT


def said_by(code: str, **options) -> str:
    """What a fresh interpreter prints: import names are a matter of the whole process."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, **options).stdout.strip()


def test_importing_the_module_changes_nothing():
    assert said_by("import sys, rlcore.compat; print('autotrain' in sys.modules)") == "False"


def test_a_call_loads_nothing_and_a_second_one_changes_nothing():
    code = """
import inspect, sys
from rlcore.compat import enable_autotrain_imports
enable_autotrain_imports()
first = sys.modules["autotrain"]
enable_autotrain_imports()
[inspect.getmodule(frame.frame) for frame in inspect.stack()]  # asks every module for its file
print(first is sys.modules["autotrain"], "torch" in sys.modules)
"""
    assert said_by(code) == "True False"


def test_every_form_of_import_finds_our_objects():
    code = """
from rlcore.compat import enable_autotrain_imports
enable_autotrain_imports()
import autotrain.trainers.rl
import autotrain.trainers.rl.dpo as dpo
from autotrain.trainers.rl import PPOConfig
from autotrain.trainers.rl import *
import rlcore, rlcore.dpo
print(autotrain.trainers.rl.dpo is dpo, dpo.PreferenceDataset is rlcore.dpo.PreferenceDataset)
print(autotrain.trainers.rl.PPOConfig is PPOConfig is rlcore.PPOConfig is globals()["PPOConfig"])
print(PPOConfig.__module__)
"""
    assert said_by(code).splitlines() == ["True True", "True", "rlcore.configs.rollout"]


def test_what_is_not_there_is_an_ordinary_import_error():
    code = """
from rlcore.compat import enable_autotrain_imports
enable_autotrain_imports()
for line in ("from autotrain.trainers.rl import nothing", "import autotrain.trainers.vision"):
    try:
        exec(line)
    except ImportError as error:
        print(type(error).__name__)
"""
    assert said_by(code).splitlines() == ["ImportError", "ModuleNotFoundError"]


def test_a_real_package_is_never_hidden(tmp_path):
    (tmp_path / "autotrain").mkdir()
    (tmp_path / "autotrain/__init__.py").write_text("")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from rlcore.compat import enable_autotrain_imports
from rlcore.errors import ConfigError
for moment in ("before", "after"):
    try:
        enable_autotrain_imports()
    except ConfigError as error:
        print(moment, error)
    import autotrain
"""
    message = "Found a package 'autotrain', expected none. Uninstall it, or import the names from rlcore instead."
    assert said_by(code).splitlines() == [f"before {message}", f"after {message}"]
