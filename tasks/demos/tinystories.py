"""Cheerful stories from a real pretrained model: real text, and VADER's sentiment as the reward signal.

A row is the opening of a story and its continuation to the end of the second sentence. Preference pairs are two
continuations that the pretrained model sampled; VADER prefers the more positive one. A reward model has to learn that
taste from pairs, the policy learns from the reward model, and VADER itself is the checker. Maximising sentiment is
easily hacked ("happy happy happy"), so perplexity and distinct-n stand beside the gold measure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from rlcore.configs import DemoDataConfig
from rlcore.errors import ConfigError, DataError
from rlcore.streams import stream_seed
from tasks.demos.packed_rows import read_packed_rows
from tasks.records.artifacts import write_rows

OPENING_WORDS = (4, 8)
LEAST_WORDS = 2
"""A story of fewer words has no opening and continuation; it is skipped."""
SENTENCES = 2
SAMPLED_TOKENS = 48
ANSWERS = 4
"""Continuations sampled for each prompt in a round; each two of them may make a pair."""
MAX_ROUNDS = 20
SMALLEST_PREFERENCE = 0.1
"""Pairs whose sentiments differ by less are no preference."""

_SENTENCE_END = re.compile(r'[.!?]+["\u201d\']?(?=\s|$)')


def generate(config: DemoDataConfig, folder: Path) -> None:
    """Write demonstrations.jsonl, preferences.jsonl and prompts.jsonl to `folder`.

    Args:
        config: `source` is a folder with stories.jsonl.gz and rl_prompts.jsonl.gz; `model_name` samples the pairs.

    Raises:
        ConfigError: source or model_name is missing.
        DataError: a file is missing or damaged, or too few pairs could be made.
    """
    if config.source is None or config.model_name is None:
        raise ConfigError(
            "demo_data: this data set needs `source` (folder of stories) and `model_name` (who samples the pairs)."
        )
    random = Random(f"{config.seed}/tinystories")
    stories = [row["text"] for row in read_packed_rows(Path(config.source) / "stories.jsonl.gz", ["text"])]
    pairs = [opening_and_continuation(story, random) for story in stories if len(story.split()) >= LEAST_WORDS]
    given = [row["prompt"] for row in read_packed_rows(Path(config.source) / "rl_prompts.jsonl.gz", ["prompt"])]
    prompts = list(dict.fromkeys([*given, *(prompt for prompt, _ in pairs)]))
    write_rows(
        folder / "demonstrations.jsonl",
        ({"prompt": prompt, "response": rest} for prompt, rest in pairs[: config.demonstrations] if rest.strip()),
    )
    write_rows(folder / "preferences.jsonl", _preferences(config, prompts))
    write_rows(folder / "prompts.jsonl", ({"prompt": prompt} for prompt in prompts))


def gold(row: Mapping[str, Any], response: str, finished: bool) -> Mapping[str, float]:
    """VADER's compound sentiment of the continuation, from -1 to 1 (Hutto & Gilbert 2014)."""
    return {"gold": sentiment(response)}


@cache
def _analyzer() -> Any:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError:
        raise ConfigError(
            "This data set needs vaderSentiment. Install the extra: pip install -e '.[tinystories]'."
        ) from None
    return SentimentIntensityAnalyzer()


def sentiment(text: str) -> float:
    """Compound sentiment of a text, from -1 (all bad) to 1 (all good); 0 for an empty one."""
    return float(_analyzer().polarity_scores(text)["compound"])


def opening_and_continuation(story: str, random: Random) -> tuple[str, str]:
    """The first 4 to 8 words of a story, and what follows up to the end of its second sentence, blank included."""
    words = [match.end() for match in re.finditer(r"\S+", story)]
    border = words[min(random.randint(*OPENING_WORDS), len(words)) - 1]
    return story[:border], first_sentences(story, SENTENCES)[border:]


def first_sentences(text: str, count: int) -> str:
    """The text up to the end of its count-th sentence; all of it where there are fewer."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return text[: ends[count - 1]] if len(ends) >= count else text


def _preferences(config: DemoDataConfig, prompts: Sequence[str]) -> Iterable[dict[str, Any]]:
    """Pairs of sampled continuations, the more positive one chosen, until there are enough."""
    made = 0
    for round_number in range(MAX_ROUNDS):
        for prompt, answers in zip(prompts, _sample_answers(config, prompts, round_number), strict=True):
            ranked = sorted(filter(str.strip, answers), key=sentiment, reverse=True)
            for better, worse in combinations(ranked, 2):
                if sentiment(better) - sentiment(worse) < SMALLEST_PREFERENCE:
                    continue
                yield {"prompt": prompt, "chosen": better, "rejected": worse}
                made += 1
                if made == config.preference_pairs:
                    return
    raise DataError(
        f"Made {made} preference pairs, expected {config.preference_pairs}. Lower demo_data.preference_pairs."
    )


def _sample_answers(config: DemoDataConfig, prompts: Sequence[str], round_number: int) -> list[list[str]]:
    """ANSWERS continuations of each prompt, cut after as many sentences as the demonstrations have."""
    from rlcore.formatting import ChatFormat
    from rlcore.sampling import SamplingParams, generate

    model, tokenizer = _sampler(str(config.model_name))
    chat = ChatFormat(tokenizer)
    rows = len(prompts) * ANSWERS
    samples = generate(
        model,
        [chat.encode_prompt(prompt) for prompt in prompts for _ in range(ANSWERS)],
        SamplingParams(max_new_tokens=SAMPLED_TOKENS, temperature=1.0),
        seeds=[stream_seed(config.seed, "pairs", round_number, row) for row in range(rows)],
        end_ids=[chat.end_id],
        pad_id=chat.pad_id,
    )
    texts = [first_sentences(chat.decode_response(ids), SENTENCES) for ids in samples.response_lists()]
    return [texts[start : start + ANSWERS] for start in range(0, rows, ANSWERS)]


@cache
def _sampler(model_name: str) -> tuple[Any, Any]:
    from rlcore.models import load_causal_lm, load_tokenizer

    return load_causal_lm(model_name).eval(), load_tokenizer(model_name)
