"""Rows in the form that a trainer reads: prompts and answers apart, whatever the form of the file.

A row is text, a prompt with answers, or chat messages. What precedes an answer of the assistant is its prompt. So a
prompt is never written twice, and the chat template is applied once, by the trainer.
"""

from collections import Counter
from collections.abc import Mapping

import datasets

from rlcore.cli.conversations import MESSAGES, PROMPT, demonstrations, pair, question, require_text, with_one_type
from rlcore.cli.params import LLMTrainingParams
from rlcore.errors import ConfigError, DataError

TEXT = "text"
ANSWERS = {"sft": "response", "ppo": PROMPT, "grpo": PROMPT, "reward": "chosen", "dpo": "chosen", "orpo": "chosen"}
"""What the text column of each trainer holds."""

_COLUMNS = {"sft": (TEXT, MESSAGES, PROMPT, "response"), "pairs": (PROMPT, "chosen", "rejected")}


def trainer_rows(rows: datasets.Dataset, params: LLMTrainingParams) -> datasets.Dataset:
    """The rows as the trainer of params reads them.

    | trainer | the file has | the trainer gets |
    |---|---|---|
    | sft | text | text |
    | sft | prompt and response, or messages | prompt and response, one row for each answer of a conversation |
    | ppo, grpo | text, prompt or messages | prompt, and the other columns for the reward source |
    | reward, dpo, orpo | prompt, chosen, rejected; or conversations as chosen and rejected | prompt, chosen, rejected |

    Raises:
        ConfigError: column_mapping names a column that the trainer does not read, or one that another setting names; or
            a column of the file has two names.
        DataError: a column is missing, or a row has the wrong form.
    """
    wanted = _wanted(params, rows)
    renamed = rename_columns(rows, wanted)
    if TEXT in wanted:
        for index, text in enumerate(renamed[TEXT]):
            require_text(index, TEXT, text)
        return renamed.select_columns([TEXT])
    convert = {"sft": demonstrations, "ppo": question, "grpo": question}.get(params.stage, pair)
    converted = [new for index, row in enumerate(renamed) for new in convert(index, row)]
    return datasets.Dataset.from_list(with_one_type(converted), on_mixed_types="use_json")


def rename_columns(rows: datasets.Dataset, wanted: Mapping[str, str]) -> datasets.Dataset:
    """The rows with the column wanted[name] under `name`; it takes the place of a column that has this name already.

    Raises:
        ConfigError: a column is wanted under two names.
        DataError: a column is not there. Names the ones that are.
    """
    for column, count in Counter(wanted.values()).items():
        if count > 1:
            names = " and ".join(sorted(name for name, found in wanted.items() if found == column))
            raise ConfigError(
                f"Found {column!r} as the column of {names}, expected one for each. Change text_column, "
                "prompt_text_column, rejected_text_column or column_mapping."
            )
    missing = sorted(set(wanted.values()) - set(rows.column_names))
    if missing:
        raise DataError(
            f"Found the columns {', '.join(rows.column_names)}, expected {', '.join(missing)}. Name the columns with "
            "text_column, prompt_text_column, rejected_text_column or column_mapping."
        )
    replaced = [name for name, found in wanted.items() if name != found and name in rows.column_names]
    rows = rows.remove_columns([name for name in replaced if name not in wanted.values()])
    return rows.rename_columns({found: name for name, found in wanted.items() if found != name})


def _wanted(params: LLMTrainingParams, rows: datasets.Dataset) -> dict[str, str]:
    """Column of the rows for each column that the trainer reads."""
    stage, found = params.stage, rows.column_names
    wanted = _mapped(params)
    if not {ANSWERS[stage], TEXT, MESSAGES} & wanted.keys():
        wanted |= _text_column(params, rows)
    answer = wanted.get(ANSWERS[stage])
    # A conversation may bring its own prompt.
    if answer is not None and (params.prompt_text_column or PROMPT in found or not _are_messages(rows, answer)):
        wanted.setdefault(PROMPT, params.prompt_text_column or PROMPT)
    if ANSWERS[stage] == "chosen":
        wanted.setdefault("rejected", params.rejected_text_column or "rejected")
    return wanted


def _mapped(params: LLMTrainingParams) -> dict[str, str]:
    """What column_mapping says."""
    mapping = dict(params.column_mapping or {})
    if params.stage in ("ppo", "grpo"):
        known = set(mapping)
    else:
        known = set(_COLUMNS["sft" if params.stage == "sft" else "pairs"])
    if set(mapping) - known:
        raise ConfigError(
            f"column_mapping: {params.stage} reads no column {', '.join(sorted(set(mapping) - known))}, but "
            f"{', '.join(sorted(known))}. Map from these to the columns of the file."
        )
    named = {
        ANSWERS[params.stage]: params.text_column != LLMTrainingParams.model_fields["text_column"].default,
        PROMPT: params.prompt_text_column is not None,
        "rejected": params.rejected_text_column is not None,
    }
    twice = [name for name in mapping if named.get(name)]
    if twice:
        raise ConfigError(f"column_mapping: found {', '.join(twice)}, which a setting of its own names. Leave one out.")
    return mapping


def _text_column(params: LLMTrainingParams, rows: datasets.Dataset) -> dict[str, str]:
    """What the text column, or what stands for it, holds."""
    own, column, found = ANSWERS[params.stage], params.text_column, rows.column_names
    is_default = column == LLMTrainingParams.model_fields["text_column"].default
    if is_default and column not in found:
        column = MESSAGES if own != "chosen" and own not in found and MESSAGES in found else own
    if params.stage != "sft" or column == own:
        return {own: column}
    if _are_messages(rows, column) and params.prompt_text_column is None:
        return {MESSAGES: column}
    has_prompt = params.prompt_text_column is not None or PROMPT in found
    return {own if has_prompt else TEXT: column}


def _are_messages(rows: datasets.Dataset, column: str) -> bool:
    return column in rows.column_names and isinstance(rows[0][column], list)
