"""How often preference pairs are put in the right order: by a reward model, by length, by a bag of words.

A reward model that orders pairs no better than length does has learned to prefer long answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rlcore.configs import EvaluateConfig
from rlcore.errors import DataError
from rlcore.results import RewardSource
from tasks.intake.text.text_rows import text_rows
from tasks.measuring import measures
from tasks.records.artifacts import PREFERENCES, REWARD_DIR

Pair = Mapping[str, Any]


def report(config: EvaluateConfig) -> str:
    """All three on the held-out pairs of the last run, as a table in Markdown.

    Raises:
        DataError: there are no pairs, to learn from or held out.
        CheckpointError: there is no whole reward model.
    """
    from rlcore.reward import RewardModelSource

    training, pairs = (text_rows(PREFERENCES[split]) for split in ("train", "held_out"))
    if not training or not pairs:
        raise DataError(
            f"Found {len(training)} pairs to train on and {len(pairs)} held out, expected at least one of each. "
            "Add pairs, or change validate.held_out_share."
        )
    wins = {
        "longer answer": longer_wins(pairs),
        "TF-IDF, logistic regression": tf_idf_wins(training, pairs),
        "reward model": model_wins(pairs, RewardModelSource(REWARD_DIR)),
    }
    groups = measures.GroupBootstrap([measures.group_of(pair) for pair in pairs], config.bootstrap_samples, config.seed)
    return table(wins, groups)


def model_wins(pairs: Sequence[Pair], reward: RewardSource) -> list[float]:
    """For each pair 1 where the chosen answer scores higher than the rejected one, else 0."""
    return [float(margin > 0) for margin in model_margins(pairs, reward)]


def model_margins(pairs: Sequence[Pair], reward: RewardSource) -> list[float]:
    """For each pair the score of the chosen answer less that of the rejected one."""
    prompts = [pair["prompt"] for pair in pairs]
    # One question for both sides: two could round equal answers in two ways, and call that a win.
    scores = reward(prompts * 2, [pair[side] for side in ("chosen", "rejected") for pair in pairs])
    return [better - worse for better, worse in zip(scores[: len(pairs)], scores[len(pairs) :], strict=True)]


def longer_wins(pairs: Sequence[Pair]) -> list[float]:
    """For each pair 1 where the chosen answer has more characters than the rejected one, 0.5 where as many, else 0."""
    lengths = ((len(pair["chosen"]), len(pair["rejected"])) for pair in pairs)
    return [(float(better > worse) + float(better >= worse)) / 2 for better, worse in lengths]


def tf_idf_wins(training: Sequence[Pair], pairs: Sequence[Pair]) -> list[float]:
    """As model_wins, for a Bradley-Terry model of the words of the answers; it does not see the prompts.

    Logistic regression without a constant on differences of TF-IDF vectors of words and pairs of words.

    Args:
        training: pairs to learn from, at least one.
        pairs: to put in order.
    """
    import numpy
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    words.fit([pair[side] for pair in training for side in ("chosen", "rejected")])

    def differences(rows: Sequence[Pair]) -> Any:
        chosen, rejected = (words.transform([row[side] for row in rows]) for side in ("chosen", "rejected"))
        return chosen - rejected

    forward = differences(training)
    order = numpy.repeat([1, 0], len(training))
    learned = LogisticRegression(C=10.0, fit_intercept=False).fit(sparse.vstack([forward, -forward]), order)
    return [float(margin > 0) for margin in learned.decision_function(differences(pairs))]


def table(wins: Mapping[str, Sequence[float]], groups: measures.GroupBootstrap) -> str:
    """A line for each scorer: accuracy, and how far it is ahead of the first one, with standard errors over groups.

    Args:
        wins: scorer → what it made of each pair.
        groups: of the pairs.
    """
    first = next(iter(wins))
    lines = ["| scorer | accuracy | ahead of the first line |", "|---|---|---|"]
    for name, values in wins.items():
        ahead = "–"
        if name != first:
            lead = [ours - theirs for ours, theirs in zip(values, wins[first], strict=True)]
            ahead = f"{measures.mean(lead):+.3f} ± {groups.standard_error(lead):.3f}"
        lines.append(f"| {name} | {measures.mean(values):.3f} ± {groups.standard_error(values):.3f} | {ahead} |")
    return "\n".join(lines)
