"""Which expressions mean the same: math-verify's answers, and the questions that it is not asked."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlcore.errors import RLCoreError
from rlcore.reward_functions import expressions
from rlcore.reward_functions.expressions import same_expression

EQUAL = [
    # terms
    (r"1/\sqrt{3}", r"\frac{\sqrt3}{3}"),
    (r"\sqrt{117}", r"3\sqrt{13}"),
    ("1+x", "x+1"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\pi/2", r"\frac{\pi}{2}"),
    ("-5i + 6", "6-5i"),
    ("2.0x", "2x"),
    # equations
    ("x + 2y = 3", "2y + x - 3 = 0"),
    # lists without brackets have no order, points have one, and intervals have ends
    ("7, 5, 3", "3, 5, 7"),
    ("5 and 3", "3, 5"),
    (r"1 - \sqrt{19}, 1 + \sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"\{2, 1\}", "1, 2"),
    ("( 1, 2 )", "(1,2)"),
    ("[0, 1)", r"x \in [0,1)"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2)\cup(3,\infty)"),
    (r"3 \ge x", r"x \le 3"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
]

DIFFERENT = [
    ("x + 2", "x + 1"),
    ("x", "y"),
    ("i", "-i"),
    ("(2,1)", "(1,2)"),
    ("2, 1", "(1, 2)"),
    ("[0,1]", "[0,1)"),
    (r"x \le 3", "x < 3"),
    ("x + 2y = 4", "x + 2y = 3"),
    (r"\begin{pmatrix}2\\1\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    # 3.141593 is pi to six decimals
    ("3.141593", r"\pi"),
    # by itself, math-verify would take these for products of letters, for 1/3 and 5/15, for 2516
    ("listen", "silent"),
    ("5:15", "10:30"),
    ("2516", "2516_8"),
    # nothing, or nothing that can be read
    ("", ""),
    (r"\frac{", r"\frac{"),
    (r"\frac{1}{0}", r"\frac{2}{0}"),
]


@pytest.mark.parametrize(("found", "gold"), EQUAL)
def test_equal(found, gold):
    assert same_expression(found, gold)


@pytest.mark.parametrize(("found", "gold"), DIFFERENT)
def test_different(found, gold):
    assert not same_expression(found, gold)


@pytest.mark.parametrize("found", ["9^{9^{9}}", "(a+b+c+d)^{90}", "{" * 300])
def test_no_expression_takes_long_and_the_next_one_is_compared(found):
    start = time.perf_counter()
    assert not same_expression(found, r"3\sqrt{13}")
    # two seconds of processor time on a machine that does other things too; without a limit it would be hours
    assert time.perf_counter() - start < 120
    assert same_expression(f"x + {len(found)}", f"{len(found)} + x")


def test_threads_get_their_own_answers():
    # 2 of each 3 pairs are equal
    pairs = [(f"{a} + y", f"y + {a if a % 3 else a + 1}") for a in range(30)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda pair: same_expression(*pair), pairs)) == [a % 3 != 0 for a in range(30)]


def test_a_worker_that_somebody_else_ends_is_replaced():
    worker = expressions._Worker()
    assert worker.equal("x + 1", "1 + x")
    worker._process.kill()
    worker._process.wait()
    assert worker.equal("x + 1", "1 + x")
    worker._stop()


def test_a_worker_that_does_not_start_is_an_error(monkeypatch, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module_here")
    monkeypatch.setattr(expressions, "WORKER", broken)
    with pytest.raises(RLCoreError, match=f"did not start under {sys.executable}.*math-verify"):
        expressions._Worker().equal("x", "y")
