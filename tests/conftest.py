"""Fixtures that every folder of tests may use."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


STRAY_STORE = Path(__file__).resolve().parents[1] / "mlflow.db"
"""Where MLflow writes when nobody tells it where to."""


def refuse_stray_store(event: str, arguments: tuple[Any, ...]) -> None:
    """Let a test fail that opens MLflow without its address: it would leave a store in the checkout."""
    if event == "sqlite3.connect" and Path(os.path.abspath(os.fsdecode(arguments[0]))) == STRAY_STORE:
        raise AssertionError("MLflow was opened without MLFLOW_TRACKING_URI")


sys.addaudithook(refuse_stray_store)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with real data and a real small model, beside the checkout. A public clone lacks it and skips."""
    if not SHARED.is_dir():
        pytest.skip("no folder `shared` beside the checkout")
    return SHARED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Under RLHF_REQUIRE_SHARED=1 a skipped test is a failure that names itself."""
    skipped = terminalreporter.stats.get("skipped", [])
    if os.environ.get("RLHF_REQUIRE_SHARED") == "1" and skipped:
        terminalreporter.write_line(f"{len(skipped)} skipped although RLHF_REQUIRE_SHARED=1", red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn a run with skips into a failed one under RLHF_REQUIRE_SHARED=1."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if os.environ.get("RLHF_REQUIRE_SHARED") == "1" and skipped and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
