"""Tables that DVC can plot, also for algorithms that lack a curve."""

from tasks.measuring.curves import CURVES, write_curves


def test_a_table_has_the_points_of_its_metric_in_their_order(tmp_path):
    rows = [
        {"step": 0, "time": 0.0, "progress/total_steps": 2.0},
        {"step": 1, "time": 1.0, "kl/ref_sequence_mean": 0.25, "reward/score_mean": -1.5},
        {"step": 2, "time": 2.0, "kl/ref_sequence_mean": 0.5},
    ]
    write_curves(rows, tmp_path)
    assert (tmp_path / "kl.csv").read_text() == "step,kl\n1,0.25\n2,0.5\n"
    assert (tmp_path / "reward.csv").read_text() == "step,reward\n1,-1.5\n"
    assert (tmp_path / "accuracy.csv").read_text() == "step,accuracy\n"


def test_every_curve_has_a_table_whatever_the_algorithm(tmp_path):
    write_curves([{"step": 3, "time": 0.0, "orpo/accuracy": 0.75}], tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(CURVES)
    assert (tmp_path / "accuracy.csv").read_text() == "step,accuracy\n3,0.75\n"
