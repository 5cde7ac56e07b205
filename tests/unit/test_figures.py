import struct
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tasks.measuring.figures import (
    FIGURES,
    PAIR_FIGURES,
    ROLLOUT_FIGURES,
    FigureData,
    draw,
    draw_comparison,
    draw_kl,
    draw_learning,
    draw_over_optimisation,
    draw_pairs,
)

POLICY = [
    {"step": 0, "progress/total_steps": 6.0},
    {"step": 0, "validation/score_mean": 0.0, "validation/ref_sequence_mean": 0.0},
    {"step": 3, "validation/score_mean": 0.5, "validation/ref_sequence_mean": 0.25, "kl/ref_sequence_mean": 0.2},
    {"step": 6, "validation/score_mean": 0.9, "validation/ref_sequence_mean": 1.0, "kl/ref_sequence_mean": 1.1},
    {"step": 6, "best/step": 6.0},
]
PAIRS = [
    {"step": 10, "dpo/loss": 0.6, "dpo/accuracy": 0.7, "dpo/margin_mean": 0.2},
    {"step": 20, "dpo/loss": 0.5, "dpo/accuracy": 0.8, "dpo/margin_mean": 0.9, "validation/loss": 0.55},
    {"step": 20, "validation/accuracy": 0.75, "validation/margin_mean": 0.8},
]
CHECKER = [
    {
        "step": step,
        "validation/reward_model_score_mean": score,
        "validation/number_right": value + 0.2,
        "validation/gold": value,
    }
    for step, score, value in ((0, 0.0, 0.4), (3, 0.5, 0.6), (6, 0.9, 0.5))
]
RESULTS = {
    "gold/sft": 0.4,
    "gold/sft_low": 0.3,
    "gold/sft_high": 0.45,
    "gold_greedy/sft": 0.5,
    "gold/policy": 0.8,
    "gold/policy_low": 0.7,
    "gold/policy_high": 0.9,
    "gold/gain": 0.4,
    "gold/gain_low": 0.3,
    "gold/gain_over_champion": 0.1,
}
DATA = FigureData(POLICY, CHECKER, RESULTS, published_step=3, kl_target=1.25, kl_budget=2.0)


def curves(figure: Figure) -> dict[str, tuple[list[float], list[float]]]:
    """Label → x and y of every line with points."""
    lines = [line for axes in figure.axes for line in axes.lines]
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}


def test_figures_are_png_of_900_pixels_and_equal_data_give_equal_bytes(tmp_path: Path):
    draw(DATA, tmp_path / "a")
    draw(DATA, tmp_path / "b")
    assert {path.stem for path in (tmp_path / "a").iterdir()} == set(FIGURES) - set(PAIR_FIGURES)
    for path in (tmp_path / "a").iterdir():
        content = path.read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">I", content[16:20]) == (900,)
        assert content == (tmp_path / "b" / path.name).read_bytes()


def test_learning_shows_proxy_checker_and_where_sft_stood():
    figure = Figure()
    draw_learning(figure, DATA)
    shown = curves(figure)
    assert shown["reward model score"] == ([0, 3, 6], [0.0, 0.5, 0.9])
    assert shown["gold"] == ([0, 3, 6], [0.4, 0.6, 0.5])
    assert shown["published checkpoint"][0] == [3, 3]
    dashed = [line for axes in figure.axes for line in axes.lines if line.get_linestyle() == "--"]
    assert sorted({line.get_ydata()[0] for line in dashed if len(line.get_ydata())}) == pytest.approx([0.4, 0.6])


def test_kl_shows_target_and_budget():
    figure = Figure()
    draw_kl(figure, DATA)
    shown = curves(figure)
    assert shown["target: 1.25"][1] == [1.25, 1.25]
    assert shown["budget of the gate: 2"][1] == [2.0, 2.0]
    assert shown["sampled in training"] == ([3, 6], [0.2, 1.1])


def test_without_a_controller_there_is_no_coefficient_to_show():
    figure = Figure()
    draw_kl(figure, DATA)
    assert len(figure.axes) == 1
    steered = Figure()
    draw_kl(steered, FigureData([*POLICY, {"step": 6, "kl/coef": 0.2}], [], {}))
    assert [axes.get_xlabel() for axes in steered.axes] == ["", "iteration"]


def test_a_policy_from_pairs_has_the_figures_of_pairs(tmp_path: Path):
    draw(FigureData(PAIRS, CHECKER[1:], RESULTS), tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(FIGURES) - set(ROLLOUT_FIGURES)


def test_pairs_show_loss_accuracy_and_margin_of_training_and_validation():
    figure = Figure()
    draw_pairs(figure, FigureData(PAIRS, [], {}, published_step=20))
    drawn = [
        [list(line.get_ydata()) for line in axes.lines if line.get_label() in ("training pairs", "validation pairs")]
        for axes in figure.axes
    ]
    assert drawn == [[[0.6, 0.5], [0.55]], [[0.7, 0.8], [0.75]], [[0.2, 0.9], [0.8]]]
    assert {axes.get_xlabel() for axes in figure.axes} == {"optimiser step"}


def test_where_the_first_evaluation_came_after_training_began_no_line_says_sft():
    figure = Figure()
    draw_learning(figure, FigureData(PAIRS, CHECKER[1:], {}))
    assert curves(figure)["gold"] == ([3, 6], [0.6, 0.5])
    assert [line for axes in figure.axes for line in axes.lines if line.get_linestyle() == "--"] == []


def test_over_optimisation_is_drawn_over_the_root_of_kl():
    figure = Figure()
    draw_over_optimisation(figure, DATA)
    assert curves(figure)["gold"] == ([0.0, 0.5, 1.0], [0.4, 0.6, 0.5])
    stars = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert [(star.get_xdata()[0], star.get_ydata()[0]) for star in stars] == [(0.5, 0.5), (0.5, 0.6)]


def test_a_slightly_negative_kl_estimate_is_no_error():
    policy = [{"step": 0, "validation/ref_sequence_mean": -1e-6}]
    figure = Figure()
    draw_over_optimisation(figure, FigureData(policy, CHECKER[:1], {}))
    assert curves(figure)["reward model score"] == ([0.0], [0.0])


def test_comparison_has_a_bar_for_each_model_and_measure():
    figure = Figure()
    draw_comparison(figure, DATA)
    bars = [round(patch.get_height(), 3) for patch in figure.axes[0].patches]
    assert bars == [0.4, 0.8, 0.5]  # sampled SFT and policy, greedy SFT; gains are no model
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["SFT", "policy"]


def test_without_a_checker_the_score_is_compared():
    scores = {"reward/score_mean": 0.9, "reward/score_mean/sft": 0.1, "reward/score_mean/policy": 0.9}
    figure = Figure()
    draw_comparison(figure, FigureData(POLICY, [], scores))
    assert [patch.get_height() for patch in figure.axes[0].patches] == [0.1, 0.9]


@pytest.mark.parametrize("name", FIGURES)
def test_a_run_that_reported_nothing_has_figures_too(name: str):
    FIGURES[name](Figure(), FigureData([], [], {}))
