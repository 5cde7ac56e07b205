"""Which answer of a pair wins: by a reward model, by length, by its words."""

import argparse
import re

import pytest

from rlcore.configs import EvaluateConfig
from rlcore.errors import DataError
from tasks.commands import pipeline as commands
from tasks.measuring import pair_accuracy
from tasks.measuring.measures import GroupBootstrap
from tasks.measuring.pair_accuracy import longer_wins, model_wins, report, table, tf_idf_wins
from tasks.records.artifacts import PREFERENCES, write_rows
from tests.support.checkout import ROOT


def pair(chosen, rejected, prompt="Say it."):
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


POLITE = [pair(f"Would you please take {word}?", f"Take {word} now!") for word in ("tea", "rice", "milk", "bread")]


def test_the_model_is_asked_once_and_equal_scores_are_no_win():
    asked = []

    def length(prompts, responses, metadata=None):
        asked.append((list(prompts), list(responses)))
        return [float(len(response)) for response in responses]

    pairs = [pair("long", "no", "A"), pair("no", "long", "B"), pair("same", "same", "C")]
    assert model_wins(pairs, length) == [1.0, 0.0, 0.0]
    assert asked == [(["A", "B", "C"] * 2, ["long", "no", "same", "no", "long", "same"])]


def test_the_longer_answer_wins_and_equal_lengths_share_the_win():
    assert longer_wins([pair("long", "no"), pair("no", "long"), pair("tea", "two")]) == [1.0, 0.0, 0.5]


def test_a_bag_of_words_learns_what_marks_the_chosen_answers():
    held_out = [pair("Would you please take salt?", "Take salt now!"), pair("Take salt now!", "Would you please?")]
    assert tf_idf_wins(POLITE, held_out) == [1.0, 0.0]


def test_answers_without_a_known_word_are_no_win():
    assert tf_idf_wins(POLITE, [pair("zzz", "qqq")]) == [0.0]


def test_the_table_says_how_far_each_scorer_is_ahead_of_the_first():
    # Four pairs of one group each. Accuracies .5 and .75; leads 0, 1, 0, 0: mean .25, error sqrt(.1875 / 4) = .217
    groups = GroupBootstrap(["a", "b", "c", "d"], 5000, seed=0)
    lines = table({"length": [1.0, 0.0, 1.0, 0.0], "model": [1.0, 1.0, 1.0, 0.0]}, groups).splitlines()
    assert re.fullmatch(r"\| length \| 0\.500 ± 0\.2[45]\d \| – \|", lines[2])
    assert re.fullmatch(r"\| model \| 0\.750 ± 0\.2[12]\d \| \+0\.250 ± 0\.2[12]\d \|", lines[3])


def test_without_pairs_to_measure_on_the_numbers_found_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(PREFERENCES["train"], POLITE)
    write_rows(PREFERENCES["held_out"], [])
    with pytest.raises(DataError, match="4 pairs to train on and 0 held out"):
        report(EvaluateConfig())


def test_the_report_learns_from_training_pairs_and_measures_held_out_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlcore.reward.RewardModelSource", lambda folder: lambda prompts, responses: [0.0] * 4)
    monkeypatch.setattr(pair_accuracy, "tf_idf_wins", lambda training, pairs: [float(training == POLITE), 0.0])
    write_rows(PREFERENCES["train"], POLITE)
    write_rows(PREFERENCES["held_out"], [pair("longer", "short", "A"), pair("even longer", "short", "B")])
    accuracies = [line.split("|")[1:3] for line in report(EvaluateConfig()).splitlines()[2:]]
    assert [(name.strip(), float(found.split("±")[0])) for name, found in accuracies] == [
        ("longer answer", 1.0),
        ("TF-IDF, logistic regression", 0.5),
        ("reward model", 0.0),
    ]


def test_the_command_prints_the_report_with_the_settings_of_the_last_run(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(commands, "enter_checkout", lambda: ROOT)
    monkeypatch.setattr(pair_accuracy, "report", lambda config: f"{type(config).__name__}: a table")
    parser = argparse.ArgumentParser()
    commands.pipeline(parser)
    arguments = parser.parse_args(["pair-accuracy"])
    assert arguments.run(arguments) == 0
    assert capsys.readouterr().out == "EvaluateConfig: a table\n"
