"""Practices that preference pairs and prompts follow or not."""

from collections.abc import Iterator

from rlcore.configs import DPOConfig, PracticesConfig
from rlcore.practices.facts import Facts


def preference_quality(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """Few preference pairs are faulty, repeated or contradictory."""
    pairs = facts.pairs
    if pairs is None or not pairs.rows:
        return
    share = (pairs.dropped + pairs.repeated + pairs.contradicting) / pairs.rows
    if share > config.max_poor_pairs:
        yield (
            f"{share:.1%} of {pairs.rows} preference pairs are of no use ({pairs.dropped} faulty, {pairs.repeated} "
            f"repeated, {pairs.contradicting} contradicting), recommended at most {config.max_poor_pairs:.1%}. Clean "
            f"them: quality counts for more than number{facts.names.move('max_poor_pairs')}."
        )


def label_smoothing(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """DPO smooths labels that contradict each other."""
    pairs, name = facts.pairs, facts.names.setting("label_smoothing")
    if pairs is None or not pairs.rows or name is None or not isinstance(facts.config, DPOConfig):
        return
    share = pairs.contradicting / pairs.rows
    if share > config.max_contradictions and facts.config.label_smoothing == 0:
        yield (
            f"{share:.1%} of the preference pairs contradict another one, and {name}=0. Set it to 0.1"
            f"{facts.names.move('max_contradictions')}."
        )


def balanced_pairs(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """Chosen and rejected responses are of like length: else length is what is learnt."""
    share = None if facts.pairs is None else facts.pairs.longer_share
    if share is not None and not 1 - config.max_longer_share <= share <= config.max_longer_share:
        what, often = ("longer", share) if share > 0.5 else ("shorter", 1 - share)
        yield (
            f"The chosen response is the {what} one in {often:.1%} of the preference pairs, recommended at most "
            f"{config.max_longer_share:.1%}. Add pairs that say otherwise, or the length is what is learnt"
            f"{facts.names.move('max_longer_share')}."
        )


def diverse_prompts(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """There are many different prompts."""
    for kind, count in facts.distinct_prompts.items():
        if count < config.min_distinct_prompts:
            yield (
                f"{kind}: found {count} different prompts, recommended at least {config.min_distinct_prompts}. Cover "
                f"the expected uses with more{facts.names.move('min_distinct_prompts')}."
            )


def separate_objectives(facts: Facts, config: PracticesConfig) -> Iterator[str]:
    """Pairs that are labelled for several objectives train a reward model for each."""
    objectives = () if facts.pairs is None else facts.pairs.objectives
    if len(objectives) > 1:
        yield (
            f"The preference pairs are labelled for {len(objectives)} objectives ({', '.join(objectives)}), and one "
            "score cannot tell them apart. Train a reward model on the pairs of each and weigh their scores."
        )
