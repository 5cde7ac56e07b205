"""Code that is read, and code that is run because somebody asked for it."""

import os
import resource
import threading
import time

import pytest

from rlcore.environments import code_execution, create_code_generation_env, passed_tests, run_code_against_tests
from rlcore.environments.code_text import code_in, style_score, syntax_score
from rlcore.errors import ConfigError, DataError, RLCoreError
from tests.support.tiny import tiny_tokenizer

GOOD = '''def add(left: int, right: int) -> int:
    """The sum."""
    return left + right
'''


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (GOOD, 1.0),
        (f"Here it is:\n```python\n{GOOD}```\nDone.", 1.0),
        (f"```\n{GOOD}", 1.0),
        ("print('hello')", 1.0),
        ("", 0.0),
        ("hello", 0.0),
        ("42", 0.0),
        ("pass", 0.0),
        ("# def add(): ...", 0.0),
        ('"""def add(): return 1"""', 0.0),
        ("def add(left, right) return left", 0.0),
        (GOOD + "    return (", 0.0),
        ("I would write def add and so on", 0.0),
        ("x = '\\d'", 1.0),
        ("\0", 0.0),
        ("-" * 15_000 + "1", 0.0),
        ("x=1\n" * 5_001, 0.0),
    ],
)
def test_syntax_counts_code_that_does_something(text, score):
    assert syntax_score(text) == score


@pytest.mark.parametrize(
    ("code", "score"),
    [
        (GOOD, 1.0),
        # no docstring, no hints: names and line lengths are left, 2 of 4
        ("def add(left, right):\n    return left + right", 0.5),
        ("def Add(Left, right):\n    return Left + right", 0.25),
        (f"def add(left, right):\n    return left + right  # {'x' * 100}", 0.25),
        # the mean of 1 and 1/2
        (GOOD + "def sub(left, right):\n    return left - right", 0.75),
        # self needs no hint; *rest does
        ('class A:\n    def f(self) -> int:\n        """One."""\n        return 1', 1.0),
        ('def f(*rest) -> int:\n    """One."""\n    return 1', 0.75),
        # so does the result
        ('def f(one: int):\n    """One."""\n    return one', 0.75),
        ("# def add():", 0.0),
        ("x = 1", 0.0),
        ("def add(", 0.0),
    ],
)
def test_style_is_the_share_of_marks(code, score):
    assert style_score(code) == score


def test_the_last_block_of_a_text_is_its_code():
    assert code_in("a\n```python\nx = 1\n```\nb\n```\ny = 2\n```\nc") == "y = 2"
    assert code_in("a\n```\nx = 1\n```\nb\n```py\ny = 2") == "y = 2"
    assert code_in("x = 1") == "x = 1"


def test_the_environment_reads_code_and_never_runs_it(tmp_path):
    marker = tmp_path / "ran"
    env = create_code_generation_env(tiny_tokenizer())
    code = f'def f() -> None:\n    """Nothing."""\nopen({str(marker)!r}, "w").write("x")\n'
    total, components = env.compute_multi_objective_reward(env.prompts[0], code, "")
    assert components == {"syntax": 1.0, "style": 1.0}
    assert total == pytest.approx(1.1)
    assert not marker.exists()
    assert env.compute_multi_objective_reward(env.prompts[0], "", "") == (0.0, {"syntax": 0.0, "style": 0.0})


def test_tests_are_counted():
    result = run_code_against_tests(GOOD, ["assert add(1, 2) == 3", "assert add(1, 2) == 4", "add('', 1)"])
    assert (result.status, result.passed, result.total) == ("failed", 1, 3)
    assert result.score == pytest.approx(1 / 3)
    assert result.errors[0] == "AssertionError"
    assert result.errors[1].startswith("TypeError")


def test_a_test_leaves_the_names_of_the_next_alone():
    assert run_code_against_tests(GOOD, ["add = None", "assert add(1, 2) == 3"]).status == "passed"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "timeout"),
        ("try:\n    while True: pass\nexcept BaseException: pass", "timeout"),
        ("import time; time.sleep(99)", "timeout"),
        ("x = [0] * 10**10", "memory"),
        ("x = None\nwhile True: x = [x]", "memory"),
        ("import os; os._exit(0)", "crashed"),
        ("import sys; sys.exit(0)", "failed"),
        ("raise KeyboardInterrupt", "failed"),
        ("def f(: pass", "failed"),
        ("print('x' * 10**7)", "passed"),
        # lines without the secret are no results, wherever they are written
        (
            'import os\nfor out in (1, 3): os.write(out, b\'{"test": 0}\\n{"finished": true}\\n\')\nos._exit(0)',
            "crashed",
        ),
    ],
)
def test_hostile_code_ends_within_its_limits(code, status):
    start = time.perf_counter()
    result = run_code_against_tests(code, ["assert True"], timeout_s=1.5, memory_bytes=1 << 26)
    assert result.status == status
    assert result.score == float(status == "passed")
    assert time.perf_counter() - start < 3.5


def test_a_faked_result_is_worth_no_more_than_all_tests():
    # nothing keeps code from reading the secret of the process it runs in
    code = "\n".join(
        [
            "import json, os, sys",
            "frame = sys._getframe()",
            "while 'job' not in frame.f_locals: frame = frame.f_back",
            "secret = frame.f_locals['job']['secret']",
            "os.write(3, ''.join(json.dumps({'secret': secret, 'test': n}) + '\\n' for n in range(9)).encode())",
        ]
    )
    assert run_code_against_tests(code, ["assert False"]).score == 1.0


def test_endless_recursion_ends_and_the_parent_does_not_grow():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = "import sys; sys.setrecursionlimit(10**9); f = lambda: f(); f()"
    assert run_code_against_tests(code, ["assert True"], timeout_s=1.5).status in ("timeout", "memory", "crashed")
    # kilobytes; the child may take 256 MiB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "import os; os.listdir('/')",
        "open('/tmp/written_by_generated_code', 'w')",
        "open('../written_by_generated_code', 'w')",
        "import os; os.symlink('/etc/passwd', 'link')",
        "import os; os.fork()",
        "import os; os.kill(os.getppid(), 9)",
        "import subprocess; subprocess.run(['true'])",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import ctypes",
    ],
)
def test_what_a_program_may_not_do_is_refused(code):
    result = run_code_against_tests(code, ["assert True"])
    assert result.status == "failed"
    assert result.errors[0].startswith("PermissionError")


def test_the_child_sees_nothing_of_its_parent(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_TOKEN", "1")
    with open(tmp_path / "open", "w") as file:
        os.set_inheritable(file.fileno(), True)
        code = "\n".join(
            [
                "import os, pathlib",
                "names = set(os.environ) - {'LC_CTYPE'}",
                "files = []",
                "for number in range(3, 32):",
                "    try: os.fstat(number)",
                "    except OSError: continue",
                "    files.append(number)",
                "pathlib.Path('own').write_text('x')",
            ]
        )
        tests = [
            "assert names == {'HOME', 'TMPDIR', 'PATH', 'LANG'}",
            # one file is open: the way out of the results
            "assert len(files) == 1, files",
            "assert os.listdir('.') == ['own']",
            f"assert os.getcwd() == os.environ['HOME'] != {os.getcwd()!r}",
            "import importlib.util; assert importlib.util.find_spec('torch') is None",
            "import resource; assert resource.getrlimit(resource.RLIMIT_AS) == (1 << 27, 1 << 27)",
        ]
        result = run_code_against_tests(code, tests, memory_bytes=1 << 27)
    assert result.status == "passed", result


def test_code_runs_from_any_thread_and_side_by_side():
    results = {}

    def run(name, code):
        results[name] = run_code_against_tests(code, ["assert True"], timeout_s=2.0).status

    jobs = {"endless": "while True: pass", "good": GOOD, "heavy": "x = [0] * 10**10"}
    threads = [threading.Thread(target=run, args=job) for job in jobs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"endless": "timeout", "good": "passed", "heavy": "memory"}


def test_an_interpreter_that_does_not_start_is_an_error_and_no_score(monkeypatch):
    monkeypatch.setattr(code_execution.sys, "executable", "/no/such/python")
    with pytest.raises(RLCoreError, match="Nothing was run"):
        run_code_against_tests(GOOD, ["assert True"])
    monkeypatch.setattr(code_execution.sys, "executable", "/bin/true")
    with pytest.raises(RLCoreError, match="Nothing was run"):
        run_code_against_tests(GOOD, ["assert True"])


def test_a_process_that_cannot_be_watched_is_ended(monkeypatch):
    started = []

    def no_descriptor_left(process_id: int) -> int:
        started.append(process_id)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(code_execution.os, "pidfd_open", no_descriptor_left)
    with pytest.raises(OSError, match="Too many open files"):
        run_code_against_tests("while True: pass", ["assert True"], timeout_s=60)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


@pytest.mark.parametrize(
    ("tests", "limits", "match"),
    [
        ([], {}, "at least one test"),
        ("assert True", {}, "expected a list"),
        (["assert True"], {"timeout_s": 0}, "above 0"),
        (["assert True"], {"memory_bytes": 1 << 20}, "the interpreter needs"),
    ],
)
def test_limits_are_checked(tests, limits, match):
    with pytest.raises(ConfigError, match=match):
        run_code_against_tests(GOOD, tests, **limits)


def test_a_component_runs_the_code_of_a_response_against_the_tests_of_its_prompt():
    component = passed_tests({"Add.": ["assert add(1, 2) == 3", "assert add(0, 0) == 1"]})
    assert component("Add.", f"Sure:\n```python\n{GOOD}```", "") == 0.5
    with pytest.raises(DataError, match="no tests for the prompt 'Subtract.'"):
        component("Subtract.", GOOD, "")
