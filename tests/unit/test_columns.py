"""Rows in the form that a trainer reads, whatever the form of the file; a prompt stands there once."""

import datasets
import pytest

from rlcore.cli.columns import rename_columns, trainer_rows
from rlcore.cli.params import LLMTrainingParams
from rlcore.errors import ConfigError, DataError

ASK, TELL, MORE = (
    {"role": "user", "content": "ask"},
    {"role": "assistant", "content": "tell"},
    {"role": "user", "content": "more"},
)
GOOD, BAD = {"role": "assistant", "content": "yes"}, {"role": "assistant", "content": "no"}
SYSTEM = {"role": "system", "content": "be brief"}
CONTEXT = [SYSTEM, ASK, TELL, MORE]


def converted(trainer, row, **settings):
    params = LLMTrainingParams(trainer=trainer, **settings)
    return list(trainer_rows(datasets.Dataset.from_list([row]), params))


@pytest.mark.parametrize(
    ("row", "settings", "expected"),
    [
        ({"text": "all of it", "n": 1}, {}, [{"text": "all of it"}]),
        ({"prompt": "ask", "response": "tell", "n": 1}, {}, [{"prompt": "ask", "response": "tell"}]),
        ({"prompt": "ask", "text": "tell"}, {}, [{"prompt": "ask", "response": "tell"}]),
        ({"q": "ask", "a": "tell"}, {"prompt_text_column": "q", "text_column": "a"},
         [{"prompt": "ask", "response": "tell"}]),
        ({"q": "ask", "a": "tell"}, {"column_mapping": {"prompt": "q", "response": "a"}},
         [{"prompt": "ask", "response": "tell"}]),
        ({"a": "all of it"}, {"text_column": "a"}, [{"text": "all of it"}]),
        ({"messages": [ASK, TELL]}, {}, [{"prompt": "ask", "response": "tell"}]),
        ({"text": [ASK, TELL]}, {}, [{"prompt": "ask", "response": "tell"}]),
        ({"chat": [ASK, TELL]}, {"text_column": "chat"}, [{"prompt": "ask", "response": "tell"}]),
        ({"chat": [ASK, TELL]}, {"column_mapping": '{"messages": "chat"}'}, [{"prompt": "ask", "response": "tell"}]),
        # every answer of a conversation, each with all that precedes it
        ({"messages": [ASK, TELL, MORE, GOOD]}, {},
         [{"prompt": [ASK], "response": "tell"}, {"prompt": [ASK, TELL, MORE], "response": "yes"}]),
        ({"prompt": [SYSTEM, ASK], "response": [TELL]}, {}, [{"prompt": [SYSTEM, ASK], "response": "tell"}]),
    ],
)  # fmt: skip
def test_demonstrations(row, settings, expected):
    assert converted("sft", row, **settings) == expected


@pytest.mark.parametrize("trainer", ["ppo", "grpo"])
@pytest.mark.parametrize(
    ("row", "settings", "expected"),
    [
        ({"text": "ask", "answer": 4}, {}, {"prompt": "ask", "answer": 4}),
        ({"prompt": "ask"}, {}, {"prompt": "ask"}),
        ({"q": "ask", "solution": "4"}, {"text_column": "q", "column_mapping": {"answer": "solution"}},
         {"prompt": "ask", "answer": "4"}),
        ({"messages": [ASK]}, {}, {"prompt": "ask"}),
        ({"messages": [ASK, TELL]}, {}, {"prompt": "ask"}),  # the answer of a demonstration is not the prompt's
        ({"prompt": CONTEXT}, {}, {"prompt": CONTEXT}),
    ],
)  # fmt: skip
def test_prompts(trainer, row, settings, expected):
    assert converted(trainer, row, **settings) == [expected]


@pytest.mark.parametrize("trainer", ["reward", "dpo", "orpo"])
@pytest.mark.parametrize(
    ("row", "settings", "prompt"),
    [
        ({"prompt": "ask", "chosen": "yes", "rejected": "no"}, {}, "ask"),
        ({"q": "ask", "good": "yes", "bad": "no", "chosen": "old"},
         {"prompt_text_column": "q", "text_column": "good", "rejected_text_column": "bad"}, "ask"),
        ({"prompt": "ask", "text": "yes", "rejected": "no"}, {}, "ask"),
        ({"prompt": "ask", "chosen": [GOOD], "rejected": [BAD]}, {}, "ask"),
        ({"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]}, {}, "ask"),
        # the prompt is said twice, and written once
        ({"prompt": "ask", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, {}, "ask"),
        ({"prompt": "ask", "chosen": [SYSTEM, ASK, GOOD], "rejected": [SYSTEM, ASK, BAD]}, {}, [SYSTEM, ASK]),
        ({"chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, {}, "ask"),
        ({"chosen": [*CONTEXT, GOOD], "rejected": [*CONTEXT, BAD]}, {}, CONTEXT),
        ({"prompt": CONTEXT, "chosen": [*CONTEXT, GOOD], "rejected": [*CONTEXT, BAD]}, {}, CONTEXT),
        ({"prompt": CONTEXT, "chosen": "yes", "rejected": "no"}, {}, CONTEXT),
    ],
)  # fmt: skip
def test_pairs(trainer, row, settings, prompt):
    assert converted(trainer, row, **settings) == [{"prompt": prompt, "chosen": "yes", "rejected": "no"}]


def test_prompts_of_both_forms_become_messages():
    rows = datasets.Dataset.from_list([{"messages": [ASK, TELL]}, {"messages": [SYSTEM, ASK, TELL]}])
    prompts = trainer_rows(rows, LLMTrainingParams(trainer="sft"))["prompt"]
    assert prompts == [[ASK], [SYSTEM, ASK]]


def test_keys_of_messages_that_nobody_reads_go():
    # files with tool calls or names have them as null in every message
    row = {"messages": [{**ASK, "name": None}, {**TELL, "name": None}, {**MORE, "name": None}, {**GOOD, "name": None}]}
    assert converted("sft", row)[1] == {"prompt": [ASK, TELL, MORE], "response": "yes"}


@pytest.mark.parametrize(
    ("trainer", "row", "named"),
    [
        ("sft", {"messages": [ASK]}, "Row 0: found no answer of the assistant"),
        ("sft", {"messages": [{"from": "human", "value": "ask"}]}, "expected text, or messages with `role`"),
        ("sft", {"prompt": "", "response": "yes"}, "Row 0, prompt: found ''"),
        ("sft", {"prompt": "ask", "response": None}, "Row 0, response: found None"),
        ("sft", {"text": " "}, "Row 0, text: found ' '"),
        ("dpo", {"prompt": "ask", "chosen": [ASK], "rejected": [BAD]}, "Row 0, chosen: the last message is .*swapped"),
        ("dpo", {"prompt": "ask", "chosen": [GOOD], "rejected": None}, "Row 0, rejected: found None"),
        (
            "dpo",
            {"prompt": "ask", "chosen": [MORE, GOOD], "rejected": [MORE, BAD]},
            "do not end with the prompt, 'ask'",
        ),
        ("dpo", {"chosen": [ASK, GOOD], "rejected": [MORE, BAD]}, "answer different conversations"),
        ("dpo", {"chosen": [GOOD], "rejected": [BAD]}, "Row 0, chosen: found an answer without a prompt"),
        ("dpo", {"chosen": "yes", "rejected": "no"}, "Found the columns chosen, rejected, expected prompt"),
        ("sft", {"response": "yes"}, "expected prompt"),
        ("ppo", {"question": "ask"}, "Found the columns question, expected prompt"),
    ],
)
def test_a_row_or_a_column_of_another_form_is_named(trainer, row, named):
    with pytest.raises(DataError, match=named):
        converted(trainer, row)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"column_mapping": {"user_col": "prompt"}}, "dpo reads no column user_col, but chosen, prompt, rejected"),
        ({"column_mapping": {"chosen": "a"}, "text_column": "b"}, "found chosen, which a setting of its own names"),
        ({"column_mapping": {"prompt": "a"}, "prompt_text_column": "b"}, "found prompt, which"),
        (
            {"rejected_text_column": "chosen"},
            "Found 'chosen' as the column of chosen and rejected, expected one for each",
        ),
    ],
)
def test_columns_are_named_once_and_only_those_that_are_read(settings, named):
    with pytest.raises(ConfigError, match=named):
        converted("dpo", {"prompt": "ask", "chosen": "yes", "rejected": "no"}, **settings)


def test_columns_get_the_names_of_the_trainer():
    rows = datasets.Dataset.from_dict({"q": ["ask"], "good": ["yes"], "bad": ["no"], "chosen": ["old"], "n": [1]})
    renamed = rename_columns(rows, {"prompt": "q", "chosen": "good", "rejected": "bad"})
    assert renamed[0] == {"prompt": "ask", "chosen": "yes", "rejected": "no", "n": 1}


def test_two_columns_may_be_exchanged():
    rows = datasets.Dataset.from_dict({"chosen": ["no"], "rejected": ["yes"]})
    assert rename_columns(rows, {"chosen": "rejected", "rejected": "chosen"})[0] == {"rejected": "no", "chosen": "yes"}


def test_a_missing_column_is_named_beside_those_that_there_are():
    rows = datasets.Dataset.from_dict({"q": ["ask"], "text": ["yes"]})
    with pytest.raises(DataError, match=r"Found the columns q, text, expected prompt, rejected\."):
        rename_columns(rows, {"prompt": "prompt", "chosen": "text", "rejected": "rejected"})
