"""GPUs belong to one stage at a time, and a stage ends when its time is over. The machine's GPUs are a script's."""

import os
import threading

import pytest

from rlcore.configs import StageResources
from rlcore.errors import ConfigError
from rlcore.exit_codes import TRANSIENT
from tasks.service import resources
from tasks.service.resources import TimedOut, deadline, gpus, holding


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """A machine whose nvidia-smi knows two GPUs, and a run on a temporary Prefect server; the folder of the locks."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-aaa'\necho '1, GPU-bbb'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(resources.tempfile, "gettempdir", lambda: str(tmp_path / "locks"))
    monkeypatch.setattr(resources, "has_temporary_server", lambda: True)
    return tmp_path / "locks"


def held_gpus(stage, count, said=None):
    return holding(stage, StageResources(gpus=count), (said if said is not None else []).append)


def test_two_stages_get_a_gpu_each_and_a_third_waits_for_the_first_that_is_free(two_gpus):
    said, got = [], []

    def third():
        with held_gpus("policy", 1, said) as visible:
            got.append(visible)

    with held_gpus("sft", 1) as first:
        with held_gpus("reward", 1) as second:
            assert (first, second) == ({"CUDA_VISIBLE_DEVICES": "GPU-aaa"}, {"CUDA_VISIBLE_DEVICES": "GPU-bbb"})
            waiting = threading.Thread(target=third)
            waiting.start()
            waiting.join(0.5)
            assert not got
        waiting.join(5)
    assert got == [{"CUDA_VISIBLE_DEVICES": "GPU-bbb"}]
    assert said == [f"policy waits for a GPU, which process {os.getpid()} on {os.uname().nodename} since "
                    f"{said[0].rpartition(' since ')[2]}"]  # fmt: skip


def test_a_stage_takes_all_its_gpus_at_once(two_gpus):
    with held_gpus("policy", 2) as visible:
        assert visible == {"CUDA_VISIBLE_DEVICES": "GPU-aaa,GPU-bbb"}


def test_a_stage_without_gpus_sees_none(two_gpus):
    with held_gpus("validate", 0) as visible:
        assert visible == {"CUDA_VISIBLE_DEVICES": ""}


def test_more_gpus_than_there_are_is_an_error_and_none_at_all_is_not(two_gpus, monkeypatch):
    with pytest.raises(ConfigError, match="resources.policy.gpus: found 3, expected at most 2"), held_gpus("policy", 3):
        pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with held_gpus("policy", 3) as visible:
        assert visible == {}


def test_the_environment_narrows_the_gpus_by_number_and_by_name(two_gpus, monkeypatch):
    assert gpus() == ["GPU-aaa", "GPU-bbb"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus() == ["GPU-bbb"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c")
    assert gpus() == ["MIG-c"]


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == []


def test_a_stage_may_take_its_time_and_no_more(monkeypatch):
    clock = iter([0.0, 119.0, 121.0])
    monkeypatch.setattr(resources.time, "monotonic", lambda: next(clock))
    check = deadline("sft", StageResources(gpus=0, timeout_minutes=2))
    check()
    with pytest.raises(
        TimedOut, match=r"limit of 2 min \(resources.sft.timeout_minutes\). Its last checkpoint"
    ) as over:
        check()
    assert over.value.exit_code == TRANSIENT


def test_a_stage_without_a_limit_never_ends_by_time(monkeypatch):
    monkeypatch.setattr(resources.time, "monotonic", lambda: 1e12)
    deadline("sft", StageResources(gpus=0))()
