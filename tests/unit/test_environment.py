"""The embedded default fills gaps and never overrules the user."""

import pytest
from sqlalchemy import create_engine

from tasks.records import environment
from tests.support.checkout import ROOT


def test_what_the_user_set_stays(tmp_path):
    theirs = {"MLFLOW_TRACKING_URI": "http://tracking:5000", "OMP_NUM_THREADS": "8"}
    variables = dict(theirs)
    environment.apply(tmp_path, variables)
    assert {name: variables[name] for name in theirs} == theirs
    assert variables["DO_NOT_TRACK"] == "true"


def test_all_state_lies_below_the_checkout_by_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    defaults = environment.embedded(tmp_path.relative_to(tmp_path))
    state = str(tmp_path / ".rlhf")
    assert defaults["PREFECT_HOME"] == f"{state}/prefect"
    assert defaults["MLFLOW_TRACKING_URI"] == f"sqlite:///{state}/mlflow.db"
    assert defaults["DVC_SITE_CACHE_DIR"].startswith(state)


def test_a_small_machine_uses_one_thread(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert environment.embedded(tmp_path)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    assert "OMP_NUM_THREADS" not in environment.embedded(tmp_path)


def test_the_users_own_dvc_settings_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "DVC_GLOBAL_CONFIG_DIR" in environment.embedded(tmp_path)
    (tmp_path / "dvc").mkdir()
    (tmp_path / "dvc" / "config").touch()
    assert "DVC_GLOBAL_CONFIG_DIR" not in environment.embedded(tmp_path)


def test_files_of_runs_lie_beside_the_embedded_store_only(tmp_path):
    uri = environment.embedded(tmp_path)["MLFLOW_TRACKING_URI"]
    assert environment.artifact_location(tmp_path, uri) == (tmp_path / ".rlhf" / "mlflow-artifacts").as_uri()
    assert environment.artifact_location(tmp_path, "http://tracking:5000") is None


def test_a_test_that_opens_mlflow_without_an_address_fails_and_leaves_no_store(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(AssertionError, match="MLflow was opened without MLFLOW_TRACKING_URI"):
        create_engine("sqlite:///mlflow.db").connect()
    assert not (ROOT / "mlflow.db").exists()
