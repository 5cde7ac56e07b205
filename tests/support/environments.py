"""Environments with the tiny tokenizer, and the episodes that tests play in them."""

from rlcore.environments import MultiObjectiveRewardEnv, StepResult, TextGenerationEnv
from tests.support.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_id


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def act_out(env: TextGenerationEnv | MultiObjectiveRewardEnv, text: str, end: bool = True) -> list[StepResult]:
    """All steps of a response; what they returned."""
    return [env.step(token) for token in [*ids_of(text), *([END] if end else [])]]


def text_env(**settings) -> TextGenerationEnv:
    return TextGenerationEnv(TOKENIZER, settings.pop("prompts", ["Say hi"]), **settings)


def graded(**settings) -> MultiObjectiveRewardEnv:
    """Pays 1 for a full text that is prompt and response, and 1 for each word."""
    components = {
        "correct": lambda prompt, generated, full_text: float(full_text == prompt + generated),
        "words": lambda prompt, generated, full_text: len(generated.split()),
    }
    return MultiObjectiveRewardEnv(TOKENIZER, ["Say hi"], components, **settings)


def longer_wins(prompt: str, first: str, second: str) -> float:
    """The difference of the lengths, in characters."""
    return float(len(first) - len(second))
