"""The embedded default: what the tools need so that one command runs without a server, an account or a question.

Applied before prefect and mlflow are imported, because both read their settings while they load. What the user has set
is kept.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path

from tasks.records.artifacts import STATE

SMALL_MACHINE = 4
"""Up to this many cores, one thread for each process is faster than many."""


def embedded(root: Path) -> dict[str, str]:
    """Environment variables of the embedded default, by name. All paths are absolute.

    Args:
        root: the checkout.
    """
    state = root.resolve() / STATE
    defaults = {
        "PREFECT_HOME": str(state / "prefect"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "tasks",
        "DO_NOT_TRACK": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{state / 'mlflow.db'}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        # A proxy is for the world outside, not for the servers of this machine.
        "NO_PROXY": "127.0.0.1,localhost",
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(state / "dvc"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if not _user_dvc_config().exists():
        # Their remotes and credentials stand in the user's own file, where there is one.
        defaults["DVC_GLOBAL_CONFIG_DIR"] = str(state / "dvc")
    if is_small_machine():
        defaults["OMP_NUM_THREADS"] = "1"
    return defaults


def is_small_machine() -> bool:
    """Whether processes of this machine compute with one thread each."""
    return (os.cpu_count() or 1) <= SMALL_MACHINE


def apply(root: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Fill what is not set yet.

    Raises:
        OSError: the checkout is not writable.
    """
    (root / STATE).mkdir(exist_ok=True)
    for name, value in embedded(root).items():
        environment.setdefault(name, value)


def artifact_location(root: Path, tracking_uri: str) -> str | None:
    """Where MLflow keeps files under the embedded default; None leaves it to the user's own tracking server."""
    state = root.resolve() / STATE
    return (state / "mlflow-artifacts").as_uri() if tracking_uri == f"sqlite:///{state / 'mlflow.db'}" else None


def _user_dvc_config() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "dvc" / "config"
