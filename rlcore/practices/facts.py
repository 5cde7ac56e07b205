"""What the checks ask of a run. None, or an empty value, is not known and not judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rlcore.configs import Recommended, StageConfig, recommended_ranges


@dataclass(frozen=True)
class Names:
    """How things are called where the run is started.

    Attributes:
        setting: the name of a field of the policy's settings; None where it cannot be set.
        silence: what silences a practice, with `{}` for its name.
        validation: what gives validation rows.
        threshold: what moves a threshold of PracticesConfig, with `{}` for its name; None where nothing does.
    """

    setting: Callable[[str], str | None]
    silence: str
    validation: str
    threshold: str | None = None

    def move(self, threshold: str) -> str:
        """The end of an advice: that a threshold may be moved."""
        return "" if self.threshold is None else f", or change {self.threshold.format(threshold)}"


@dataclass(frozen=True)
class PairFigures:
    """Figures of preference pairs.

    Attributes:
        rows: in all, those that were dropped included.
        dropped, repeated, contradicting: rows that broke a rule, that repeat a row, that prefer the other way round.
        longer_share: of the pairs, those whose chosen response is the longer one, in characters; equal ones count half.
        objectives: what the pairs are labelled for, such as helpfulness and safety.
    """

    rows: int
    dropped: int = 0
    repeated: int = 0
    contradicting: int = 0
    longer_share: float | None = None
    objectives: tuple[str, ...] = ()


class FullTraining(NamedTuple):
    """A training of all weights."""

    setting: str
    """What would train adapters instead."""
    model: str
    parameters: int | None
    """Weights of the model."""


class InRange(NamedTuple):
    """A number that has a recommended range."""

    name: str
    value: float
    recommended: Recommended


@dataclass(frozen=True)
class Facts:
    """What is known of one training of a policy or a reward model.

    Attributes:
        trainer: sft, reward, ppo, grpo, dpo or orpo.
        config: settings of the trainer.
        names: how its settings are called.
        ranges: its numbers that have a recommended range.
        is_fine_tuned: whether the model it starts from has learnt from demonstrations.
        full_trainings: trainings of all weights.
        pairs: of the preference pairs.
        distinct_prompts: kind of rows to the number of different prompts.
        validation_rows: rows of the validation split.
        evaluations: on them, in the whole training.
        reward_model: the reward model that the policy learns from.
        reward_accuracy: share of its validation pairs that it orders rightly.
        reward_pairs: how many validation pairs these are.
        max_kl: limit of the KL to the reference, in nats per response.
        kl: to the reference as training ended, in nats per response.
        kl_of_target: the same in the unit of the target that ppo steers for.
    """

    trainer: str
    config: StageConfig
    names: Names
    ranges: tuple[InRange, ...] = ()
    is_fine_tuned: bool | None = None
    full_trainings: tuple[FullTraining, ...] = ()
    pairs: PairFigures | None = None
    distinct_prompts: Mapping[str, int] = field(default_factory=dict)
    validation_rows: int | None = None
    evaluations: int | None = None
    reward_model: str | None = None
    reward_accuracy: float | None = None
    reward_pairs: int | None = None
    max_kl: float | None = None
    kl: float | None = None
    kl_of_target: float | None = None

    @property
    def samples(self) -> bool:
        """Whether the policy learns from responses that it samples."""
        return self.trainer in ("ppo", "grpo")


def ranges_of(config: StageConfig, name_of: Callable[[str], str | None]) -> tuple[InRange, ...]:
    """The numbers of some settings that have a recommended range, but for the learning rate.

    Args:
        config: the settings.
        name_of: how a field is called; None leaves it out.
    """
    named = ((field, name_of(field), recommended) for field, recommended in recommended_ranges(type(config)))
    return tuple(
        InRange(name, getattr(config, field), recommended)
        for field, name, recommended in named
        if name is not None and field != "learning_rate"
    )
