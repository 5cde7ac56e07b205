"""Progress of a run: lines where there is no terminal, a bar where there is one."""

import re

import datasets
import pytest
from transformers.utils import logging as transformers_logging

from rlcore.cli import progress
from rlcore.cli.progress import SHOWN, shown_progress
from tests.support.metric_names import explained


def told(show) -> None:
    show(0, {"progress/total_steps": 2.0})
    show(1, {"dpo/loss": 0.693147, "time/update_s": 3.0})
    show(2, {"dpo/loss": 0.5, "validation/loss": 0.25})


def test_each_report_is_a_line_where_there_is_no_terminal(capsys):
    with shown_progress("dpo") as show:
        told(show)
    assert capsys.readouterr().out.splitlines() == [
        "dpo 1/2: loss 0.6931",
        "dpo 2/2: loss 0.5, validation loss 0.25",
    ]


def test_a_terminal_shows_a_bar_with_the_newest_numbers(monkeypatch, capsys):
    real = progress.Console
    monkeypatch.setattr(progress, "Console", lambda: real(force_terminal=True, width=120))
    with shown_progress("dpo") as show:
        told(show)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    last = [line for line in plain.splitlines() if line.strip()][-1]
    assert "2/2" in last
    assert "loss 0.5  validation loss 0.25" in last


def test_libraries_show_no_bars_of_their_own_meanwhile():
    bars = [transformers_logging.is_progress_bar_enabled, lambda: not datasets.are_progress_bars_disabled()]
    before = [shown() for shown in bars]
    with shown_progress("dpo"):
        assert [shown() for shown in bars] == [False, False]
    assert [shown() for shown in bars] == before == [True, True]


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_is_a_metric(name):
    assert name in explained([""])


def test_what_is_rounding_is_shown_as_0_and_both_estimates_of_the_kl_have_a_name(capsys):
    with shown_progress("ppo") as show:
        show(1, {"kl/ref_token_mean": -3.75e-07, "kl/ref_k3_token_mean": 0.25, "progress/total_steps": 1.0})
    assert capsys.readouterr().out == "ppo 1/1: KL/token 0, KL/token (k3) 0.25\n"
