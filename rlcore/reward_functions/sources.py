"""Functions of several forms as reward sources, functions found by name, and weighted sums."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from rlcore.errors import ConfigError
from rlcore.results import RewardSource
from rlcore.reward_functions.checks import ScoreCheck, checked_counts, checked_scores, checked_weights, own_copies
from rlcore.reward_functions.named import REWARD_FUNCTIONS, Rows

PLACES = {"prompts": 0, "prompt": 0, "responses": 1, "response": 1, "generated": 1, "metadata": 2, "full_text": 2}
"""Where a parameter of each name stands, if it is passed by position."""

FORMS = "(prompts, responses, metadata=None), or per response (prompt, generated, full_text)"


def as_reward_source(
    function: Callable[..., Any], name: str | None = None, check: ScoreCheck = checked_scores
) -> RewardSource:
    """A reward function of any of three forms as a reward source. What it returns is checked.

    1. `(prompts, responses)` with or without `metadata`: lists in, one number for each response out. With these names
       in any order, with others by position.
    2. Parameters named `prompt`, `generated` or `response`, `full_text`, in any order: called with keywords once for
       each response. `full_text` is the prompt followed by the response.
    3. Three required parameters of other names: called as form 2, by position.

    The function gets copies: what it does to its arguments reaches nobody else.

    Args:
        function: the function, or an object that can be called.
        name: what errors call it; by default its own name.
        check: what is made of the scores that it returns.

    Raises:
        ConfigError: the parameters fit none of the forms, or one of these names stands elsewhere. The source raises
            DataError for a wrong count, None, NaN or infinity, naming the function.
    """
    named = name or str(getattr(function, "__name__", type(function).__name__))
    call = _calling(function, named)

    def source(prompts: Sequence[str], responses: Sequence[str], metadata: Rows | None = None) -> list[float]:
        checked_counts(prompts, responses, metadata)
        return check(call(*own_copies(prompts, responses, metadata)), len(responses), named)

    source.__name__ = named
    vars(source)["responses_per_prompt"] = responses_per_prompt(function)
    return source


def responses_per_prompt(reward: object) -> int:
    """Responses to one prompt that a source wants to see together: more than 1 where it compares them.

    A source says so in an attribute of this name.
    """
    return int(getattr(reward, "responses_per_prompt", 1))


def reward_function_named(name: str) -> RewardSource:
    """A reward source from a setting: a name in REWARD_FUNCTIONS, or `module:function` for one's own.

    Raises:
        ConfigError: unknown name, no such module, no such function, or one of another form.
    """
    if name in REWARD_FUNCTIONS:
        return REWARD_FUNCTIONS[name]
    if ":" not in name:
        raise ConfigError(
            f"reward function {name!r}: expected {', '.join(REWARD_FUNCTIONS)}, or module:function for your own."
        )
    return as_reward_source(imported_object(name.partition(":")[0], name.partition(":")[2]))


def imported_object(module_name: str, name: str) -> Any:
    """A function or class of a module that can be imported.

    Raises:
        ConfigError: there is no such module, or no such callable in it.
    """
    if not module_name or module_name.startswith("."):
        raise ConfigError(f"Module {module_name!r}: expected a full name, as in package.module.")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Module {module_name!r}: {error.name} was not found. Correct the name, install it, or run from its folder."
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        own = [key for key in names if getattr(vars(module)[key], "__module__", None) == module.__name__] or names
        listed = ", ".join(difflib.get_close_matches(name, names) or own[:10]) or "none"
        raise ConfigError(
            f"{module_name} has no function or class {name!r}, among its {len(names)} are: {listed}. Correct the name."
        )
    return found


class WeightedSum:
    """A reward source whose score is the sum of weight * score over named sources.

    Args:
        sources: reward sources or functions of the forms of as_reward_source.
        weights: weight by name; one that is not given is 1.
        check: what is made of the scores that they return.

    Raises:
        ConfigError: there is no source, or a weight is no finite number or belongs to none. The source raises DataError
            for scores that are not finite numbers, naming which.
    """

    def __init__(
        self,
        sources: Mapping[str, Callable[..., Any]],
        weights: Mapping[str, float] | None = None,
        check: ScoreCheck = checked_scores,
    ):
        self.weights = checked_weights(sources, weights)
        self.sources = {name: as_reward_source(source, f"Reward {name}", check) for name, source in sources.items()}
        self.__name__ = "+".join(sources)
        self.responses_per_prompt = max(map(responses_per_prompt, sources.values()))

    def parts(
        self, prompts: Sequence[str], responses: Sequence[str], metadata: Rows | None = None
    ) -> dict[str, list[float]]:
        """By name, the unweighted scores of each source."""
        checked_counts(prompts, responses, metadata)
        return {name: source(prompts, responses, metadata) for name, source in self.sources.items()}

    def total(self, parts: Mapping[str, Sequence[float]]) -> list[float]:
        """The weighted sum of what `parts` returned."""
        weighted = [[self.weights[name] * score for score in scores] for name, scores in parts.items()]
        return [sum(scores) for scores in zip(*weighted, strict=True)]

    def __call__(self, prompts: Sequence[str], responses: Sequence[str], metadata: Rows | None = None) -> list[float]:
        """One score for each response, in the order given."""
        return self.total(self.parts(prompts, responses, metadata))


def weighted_sum(sources: Mapping[str, Callable[..., Any]], weights: Mapping[str, float] | None = None) -> RewardSource:
    """A WeightedSum of named sources."""
    return WeightedSum(sources, weights)


def _calling(function: Callable[..., Any], name: str) -> Callable[[Sequence[str], Sequence[str], Rows | None], Any]:
    """How the function is called for a batch of responses."""
    signature = _signature(function, name)

    def fits(*args: None, **kwargs: None) -> bool:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def each(score: Callable[[str, str], Any]) -> Callable[[Sequence[str], Sequence[str], Rows | None], list[Any]]:
        return lambda prompts, responses, _: [
            score(prompt, response) for prompt, response in zip(prompts, responses, strict=True)
        ]

    if fits(prompt=None, generated=None, full_text=None):
        return each(lambda prompt, text: function(prompt=prompt, generated=text, full_text=prompt + text))
    if fits(prompt=None, response=None, full_text=None):
        return each(lambda prompt, text: function(prompt=prompt, response=text, full_text=prompt + text))
    if fits(prompts=None, responses=None, metadata=None):
        return lambda prompts, responses, metadata: function(prompts=prompts, responses=responses, metadata=metadata)
    if fits(prompts=None, responses=None) and not fits(None, None, None):
        return lambda prompts, responses, _: function(prompts=prompts, responses=responses)
    _require_places(signature, name)
    if fits(None, None, metadata=None):
        return lambda prompts, responses, metadata: function(prompts, responses, metadata=metadata)
    takes_lists = fits(None, None) or list(signature.parameters)[:2] == ["prompts", "responses"]
    if takes_lists and fits(None, None, None):
        return function
    if fits(None, None):
        return lambda prompts, responses, metadata: function(prompts, responses)
    if fits(None, None, None):
        return each(lambda prompt, text: function(prompt, text, prompt + text))
    raise ConfigError(f"Reward function {name}{signature}: expected the parameters {FORMS}.")


def _require_places(signature: inspect.Signature, name: str) -> None:
    """Refuse a function that would get responses as prompts, or the like."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    positional = [key for key, parameter in signature.parameters.items() if parameter.kind in kinds]
    for place, parameter in enumerate(positional):
        if PLACES.get(parameter, place) != place:
            raise ConfigError(
                f"Reward function {name}{signature}: found {parameter} as parameter {place + 1}, expected the "
                f"parameters {FORMS}. Order or rename them."
            )


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    if not callable(function):
        raise ConfigError(f"Found {function!r} as a reward function, expected a function {FORMS}.")
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise ConfigError(
            f"Reward function {name} does not tell its parameters. Wrap it in a function {FORMS}."
        ) from None
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in signature.parameters.values()):
        raise ConfigError(
            f"Reward function {name}{signature}: *args does not tell what it expects. Wrap it in a function {FORMS}; "
            "a reward model in rlcore.RewardModelSource."
        )
    return signature
