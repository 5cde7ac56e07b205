"""`params.yaml`: read, checked, overridden and written back with its comments.

Order: class default < `params.yaml` < a parameter file < `section.key=value`. DVC hashes `params.yaml`, so what a run
uses is written there.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from rlcore.configs import (
    DemoDataConfig,
    DPOConfig,
    EvaluateConfig,
    GateConfig,
    GRPOConfig,
    ORPOConfig,
    PPOConfig,
    PracticesConfig,
    RegisterConfig,
    ResourcesConfig,
    RewardModelConfig,
    SFTConfig,
    StageConfig,
    StageResources,
    ValidateConfig,
)
from rlcore.errors import ConfigError
from rlcore.sections import build_config
from tasks.records.artifacts import (
    PARAMS,
    POLICY_ALGORITHMS,
    REWARD_DIR,
    SAMPLING_ALGORITHMS,
    UNREAD,
    write_text,
)
from tasks.records.wording import first_line

SEED_LIMIT = 2**32
"""Seeds lie below: NumPy takes 32 bits."""

TOP_LEVEL = ("algorithm", "reward_function", "seed")
"""Settings of a run that stand in no section."""


@dataclass(frozen=True)
class Parameters:
    """Every setting of one pipeline run. Each section has the run's seed unless it names its own.

    Attributes:
        algorithm: which section the stage `policy` runs with.
        reward_function: what scores the responses that a policy samples, as `module:function`; None is the pipeline's
            reward model. For algorithms that sample.
        seed: of all sections.
    """

    algorithm: str
    reward_function: str | None
    seed: int
    demo_data: DemoDataConfig
    validate: ValidateConfig
    sft: SFTConfig
    reward: RewardModelConfig
    ppo: PPOConfig
    grpo: GRPOConfig
    dpo: DPOConfig
    orpo: ORPOConfig
    evaluate: EvaluateConfig
    gate: GateConfig
    register: RegisterConfig
    resources: ResourcesConfig
    practices: PracticesConfig

    def of_stage(self, stage: str) -> StageConfig:
        """The section that a stage of `dvc.yaml` runs with."""
        section: StageConfig = getattr(self, self.algorithm if stage == "policy" else stage)
        return section

    def resources_of(self, stage: str) -> StageResources:
        """What a stage of `dvc.yaml` may use of the machine."""
        named = stage in ResourcesConfig.model_fields
        resources: StageResources = getattr(self.resources, stage) if named else StageResources(gpus=0)
        return resources

    def unread_by_policy(self) -> tuple[Path, ...]:
        """Of the data that `dvc.yaml` lists for the stage `policy`, what this run's policy does not learn from."""
        return UNREAD[self.algorithm] if self.reward_function is None else (*UNREAD[self.algorithm], REWARD_DIR)

    def policy_origin(self) -> str:
        """How the policy is trained and on what, in words."""
        name = self.algorithm.upper()
        if self.algorithm not in SAMPLING_ALGORITHMS:
            return f"{name} on preference pairs"
        return f"{name} on the scores of {self.reward_function or 'the reward model'}"


SECTIONS: dict[str, type[StageConfig]] = {
    field.name: field.type
    for field in fields(Parameters)
    if isinstance(field.type, type) and issubclass(field.type, StageConfig)
}


@dataclass(frozen=True)
class Change:
    """One setting that differs from the file."""

    key: tuple[str, ...]
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{'.'.join(self.key)}: {self.old!r} -> {self.new!r}"


@dataclass(frozen=True)
class Resolution:
    """Checked parameters, the mapping they came from, and what in it differs from the base file."""

    parameters: Parameters
    values: dict[str, Any]
    changes: tuple[Change, ...]


def load_parameters(path: Path = PARAMS) -> Parameters:
    """Read and check a complete parameter file.

    Raises:
        ConfigError: one line for each fault: no file, broken YAML with its line, missing section, bad key or value.
    """
    return build_parameters(read_yaml(path))


def stage_config(section: str, path: Path = PARAMS) -> StageConfig:
    """One section of a parameter file, checked; the other sections may be faulty.

    Raises:
        ConfigError: as for load_parameters.
    """
    return _section(section, read_yaml(path))


def resolve(base: Path = PARAMS, overrides: Path | None = None, sets: Sequence[str] = ()) -> Resolution:
    """The parameters of a run: the base file, settings of another file over it, single settings over both.

    Args:
        base: a complete parameter file.
        overrides: a parameter file with some sections; each key in it replaces that key of the section.
        sets: "section.key=value", or "seed=3"; the value is YAML.

    Raises:
        ConfigError: as for load_parameters, or a set that is not key=value.
    """
    before = read_yaml(base)
    values = _merge(before, read_yaml(overrides)) if overrides else _copy(before)
    for assignment in sets:
        _assign(values, assignment)
    return Resolution(build_parameters(values), values, tuple(differences(before, values)))


def differences(before: Mapping[str, Any], after: Mapping[str, Any], key: tuple[str, ...] = ()) -> list[Change]:
    """What differs in nested settings, a line for each; what `after` lacks is not looked at."""
    changes = []
    for name, new in after.items():
        old = before.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() <= new.keys():
            changes += differences(old, new, (*key, name))
        elif name not in before or old != new or isinstance(old, bool) != isinstance(new, bool):
            changes.append(Change((*key, name), old, new))
    return changes


def write_parameters(path: Path, changes: Sequence[Change]) -> None:
    """Write changed settings into a parameter file. Comments stay; without a change the bytes stay."""
    if not changes:
        return
    yaml = _round_trip()
    document = yaml.load(path.read_text(encoding="utf-8"))
    for change in changes:
        section = document
        for name in change.key[:-1]:
            section = section[name]
        section[change.key[-1]] = change.new
    text = io.StringIO()
    yaml.dump(document, text)
    write_text(path, text.getvalue())


def build_parameters(values: Mapping[str, Any]) -> Parameters:
    """Check a mapping with `algorithm`, `reward_function`, `seed` and all sections.

    Raises:
        ConfigError: one line for each fault of all sections together.
    """
    faults = [
        f"{name}: unknown section. Known: {', '.join((*TOP_LEVEL, *SECTIONS))}."
        for name in values
        if name not in SECTIONS and name not in TOP_LEVEL
    ]
    algorithm, reward_function, seed = (values.get(name) for name in TOP_LEVEL)
    if "reward_function" not in values:
        faults.append("reward_function: missing. Add `reward_function: null` to the file.")
    faults += _policy_faults(algorithm, reward_function)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEED_LIMIT:
        faults.append(f"seed: found {seed!r}, expected a whole number from 0 to {SEED_LIMIT - 1}.")
        values = {**values, "seed": 0}
    sections: dict[str, StageConfig] = {}
    for name in SECTIONS:
        try:
            sections[name] = _section(name, values)
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError("\n".join(faults))
    return Parameters(algorithm, reward_function, seed, **sections)  # type: ignore[arg-type]


def check_seeds(seeds: Sequence[int]) -> None:
    """Let seeds of several runs pass: at least one, none twice.

    Raises:
        ConfigError: otherwise, or one is out of range.
    """
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed < SEED_LIMIT for seed in seeds):
        raise ConfigError(
            f"seeds: found {', '.join(map(str, seeds)) or 'none'}, expected different whole numbers from 0 to "
            f"{SEED_LIMIT - 1}."
        )


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file whose top level is a mapping.

    Raises:
        ConfigError: no such file, not readable, not YAML (with the line), or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path}: {reason}. Check the path of the parameter file.") from None
    try:
        values = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown place"
        raise ConfigError(f"{path}: not YAML at {place}: {first_line(error.problem or error.context)}.") from None
    except (YAMLError, ValueError) as error:  # an impossible date is a ValueError
        raise ConfigError(f"{path}: not YAML: {first_line(str(error))}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: found {type(values).__name__}, expected a mapping of sections.")
    return values


def _policy_faults(algorithm: Any, reward_function: Any) -> Iterator[str]:
    """What is wrong with the choice of an algorithm and of what it learns from."""
    if algorithm not in POLICY_ALGORITHMS:
        yield f"algorithm: found {algorithm!r}, expected one of {', '.join(POLICY_ALGORITHMS)}."
    if reward_function is None:
        return
    if not isinstance(reward_function, str):
        yield f"reward_function: found {reward_function!r}, expected null or module:function."
    elif algorithm in POLICY_ALGORITHMS and algorithm not in SAMPLING_ALGORITHMS:
        yield (
            f"reward_function: found {reward_function!r} with algorithm {algorithm}, which learns from preference "
            f"pairs alone. Set it to null, or take one of {', '.join(SAMPLING_ALGORITHMS)}."
        )


def _section(section: str, values: Mapping[str, Any]) -> StageConfig:
    settings = values.get(section)
    if isinstance(settings, Mapping):
        settings = {"seed": values.get("seed", 0), **settings}
    return build_config(SECTIONS[section], section, settings)


def _merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = _copy(base)
    for name, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), dict):
            merged[name].update(_copy(value))
        else:
            merged[name] = value
    return merged


def _assign(values: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"{assignment!r}: expected section.key=value, for example sft.max_steps=200 or seed=1.")
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError):  # an impossible date is a ValueError
        raise ConfigError(f"{assignment!r}: the value {text!r} is not YAML. Quote it.") from None
    for depth, name in enumerate(names[:-1], start=1):
        if values.get(name) is None and depth > 1:
            values[name] = {}
        values = values.get(name)  # type: ignore[assignment]
        if not isinstance(values, dict):
            raise ConfigError(f"{assignment!r}: {'.'.join(names[:depth])} is no section. Known: {', '.join(SECTIONS)}.")
    values[names[-1]] = value


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _round_trip() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 16
    yaml.representer.add_representer(
        type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return yaml
