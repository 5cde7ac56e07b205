"""`make docs` writes a page for every module, and no docstring of ours makes it warn."""

import runpy
from pathlib import Path

from tests.support.checkout import ROOT


def test_every_module_has_a_page_and_its_sections_are_set(tmp_path: Path):
    runpy.run_path(str(ROOT / "docs/api.py"))["main"](tmp_path)  # a warning is an error there
    modules = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "rlcore").rglob("*.py")]
    expected = {str(path.parent if path.name == "__init__" else path) for path in modules}
    written = {str(path.relative_to(tmp_path).with_suffix("")) for path in tmp_path.rglob("*.html")}
    assert written == expected | {"index"}
    # "Args:" and "Raises:" of a docstring are headings, and a setting shows what it means
    trainer = (tmp_path / "rlcore/ppo.html").read_text()
    assert "Arguments" in trainer
    assert "Raises" in trainer
    assert "Recommended: 0.9 to 0.99." in (tmp_path / "rlcore/cli/params.html").read_text()
