"""The command `rlhf`: groups from entry points, one clear line for what a user can cause, a look at the machine."""

import errno
import socket
from importlib.metadata import EntryPoint

import pytest

from rlcore.cli import doctor, main
from rlcore.errors import CheckpointError, ConfigError, DeviceMemoryError, TrainingDiverged
from tasks.service.servers import HOST, ServerFailed, free_port


@pytest.fixture
def groups(monkeypatch):
    """Entry points that the test adds: name → the function that runs."""
    added = {}

    def entries(group):
        assert group == "rlhf.commands"
        return [EntryPoint(name, f"{__name__}:{name}", group) for name in added]

    def load(entry):
        def group(parser):
            """A group of the test."""
            parser.set_defaults(run=added[entry.name])

        return group

    monkeypatch.setattr(main, "entry_points", entries)
    monkeypatch.setattr(EntryPoint, "load", load)
    return added


def raising(error):
    def run(arguments):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("x: found 1. Change it."), 2, "rlhf: x: found 1. Change it."),
        (PermissionError(errno.EACCES, "Permission denied", "/data"), 2, "rlhf: /data: Permission denied."),
        (OSError(errno.EROFS, "Read-only file system", ".rlhf"), 2, "rlhf: .rlhf: Read-only file system."),
        (OSError(errno.ENOSPC, "No space left on device"), 75, "rlhf: this machine: No space left on device."),
        (ServerFailed("Prefect does not answer."), 75, "rlhf: Prefect does not answer."),
        (TrainingDiverged("Step 3: no number."), 1, "rlhf: Step 3: no number."),
        (DeviceMemoryError("No room."), 75, "rlhf: No room."),
        (CheckpointError("x: of\nanother run."), 2, "rlhf: x: of another run."),
        (
            ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
            75,
            "rlhf: this machine: Connection reset",
        ),
        (MemoryError(), 75, "rlhf: this machine: too little memory."),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_user_can_cause_is_one_line_and_a_code(groups, capsys, error, code, line):
    groups["pipeline"] = raising(error)
    assert main.main(["pipeline"]) == code
    assert capsys.readouterr().err.strip().startswith(line)


def test_a_fault_of_ours_is_not_hidden(groups):
    groups["pipeline"] = raising(KeyError("bug"))
    with pytest.raises(KeyError):
        main.main(["pipeline"])


def test_a_group_returns_its_exit_code(groups):
    groups["pipeline"] = lambda arguments: 75
    assert main.main(["pipeline"]) == 75


def test_without_the_checkouts_modules_the_group_says_so(monkeypatch, capsys):
    entry = EntryPoint("pipeline", "no_such_package.commands:pipeline", "rlhf.commands")
    monkeypatch.setattr(main, "entry_points", lambda group: [entry])
    assert main.main(["pipeline", "run", "--params", "x.yaml"]) == 2
    assert "`rlhf pipeline` needs a checkout: found no module 'no_such_package'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([], "rlhf: the following arguments are required: command."),
        (["lmm"], "rlhf: argument command: invalid choice: 'lmm'"),
        (["doctor", "--verbose"], "rlhf: doctor: there is no flag --verbose. See rlhf doctor --help."),
        (["llm", "--trian"], "rlhf: llm: there is no flag --trian. Did you mean --train?"),
        (["llm"], "rlhf: llm found no --train, expected it: there is nothing else to do. Add it."),
    ],
)
def test_a_command_that_cannot_be_read_is_one_line_too(capsys, argv, line):
    assert main.main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert said.count("\n") == 1


def test_doctor_finds_this_machine_fit(tmp_path):
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert list(findings) == ["python", "packages", "device", "disk", "folder", "port"]
    assert findings["python"].fine
    assert findings["folder"].found == str(tmp_path)


def test_doctor_names_what_is_missing_or_other_than_expected(tmp_path, monkeypatch):
    wanted = ["numpy>=999", "no-such-package", 'pytest<1; extra == "dev"', 'prefect==3.9.1; extra == "pipeline"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: wanted)
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 60)
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert "no-such-package missing" in findings["packages"].found
    assert "expected >=999" in findings["packages"].found
    assert "pytest" not in findings["packages"].found
    assert str(findings["disk"]).startswith("FAIL  disk")
    assert str(findings["disk"]).endswith("The demo needs 2 GiB; free some")


def test_a_taken_port_gives_way_to_a_free_one():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        assert free_port(port) not in (0, port)
    assert free_port(port) == port
