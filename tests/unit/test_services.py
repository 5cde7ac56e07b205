"""Long-lived processes: started once, mended when they died, ended with all their children. A file server stands in."""

import os
import signal
import time
from types import SimpleNamespace

import pytest

from tasks.records.processes import living
from tasks.service import services
from tasks.service.servers import ServerFailed, free_port
from tasks.service.services import Kind, Service


@pytest.fixture
def service(tmp_path):
    kind = Kind("files", "Files", free_port(), "/", lambda port: ["http.server", "--bind", "127.0.0.1", str(port)])
    service = Service(kind, tmp_path)
    yield service
    service.stop()


def test_a_service_is_started_once_and_found_by_who_comes_later(service, tmp_path):
    assert service.start()
    service.wait()
    later = Service(service.kind, tmp_path)
    assert (later.process, later.url, later.is_up()) == (service.process, service.url, True)
    assert not later.start()
    assert later.stop()
    assert not later.stop()
    assert not service.is_up()


def test_a_killed_service_comes_back_on_its_port(service):
    service.start()
    service.wait()
    url, before = service.url, service.process
    os.kill(before, signal.SIGKILL)
    while living(before):
        time.sleep(0.05)
    assert service.process == 0
    assert service.start()
    service.wait()
    assert service.url == url
    assert service.process not in (0, before)


def test_other_settings_start_it_anew(service):
    service.start(GREETING="a")
    service.wait()
    before = service.process
    assert not service.start(GREETING="a")
    assert service.start(GREETING="b")
    assert living(before) == []


def test_a_service_that_hangs_is_started_anew(service, monkeypatch):
    service.start()
    service.wait()
    before = service.process
    os.kill(before, signal.SIGSTOP)
    monkeypatch.setattr("tasks.service.services.HUNG_SECONDS", 0.0)
    monkeypatch.setattr("tasks.service.services.answers", lambda url: False)
    assert service.start()
    assert service.process != before


def test_a_service_that_ends_by_itself_is_an_error_that_names_its_log(tmp_path):
    service = Service(Kind("broken", "Broken", 0, "/", lambda port: ["no_such_module"]), tmp_path)
    service.start()
    with pytest.raises(ServerFailed, match=r"broken ended by itself. See .*broken.log"):
        service.wait()


def test_a_full_disk_is_named_as_the_likely_reason(tmp_path, monkeypatch):
    service = Service(Kind("broken", "Broken", 0, "/", lambda port: ["no_such_module"]), tmp_path)
    monkeypatch.setattr(services.shutil, "disk_usage", lambda root: SimpleNamespace(free=3 << 20))
    service.start()
    with pytest.raises(ServerFailed, match="itself. The disk is full: 3 MiB are left. See "):
        service.wait()


def test_a_port_of_somebody_else_is_left_to_them(tmp_path):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        service = Service(Kind("files", "Files", taken, "/", lambda port: ["http.server", str(port)]), tmp_path)
        try:
            service.start()
            assert service.url != f"http://127.0.0.1:{taken}"
        finally:
            service.stop()
