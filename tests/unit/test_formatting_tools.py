"""Tools in a prompt, and what stands between a turn that called one and the next turn, token by token."""

import copy

import pytest

from rlcore.errors import ConfigError
from rlcore.formatting import ChatFormat
from tests.support.tiny import blank_marking_tokenizer, tiny_tokenizer
from tests.support.tools import TOOL_TEMPLATE, schema, tool_tokenizer

SCHEMAS = [schema("search")]
QUESTION = "Which rooms are free?"
RESULTS = [{"role": "tool", "name": "search", "content": "room 7 is free"}]


def tokenizer_with(template: str | None):
    tokenizer = copy.deepcopy(tool_tokenizer())
    tokenizer.chat_template = template
    return tokenizer


def test_the_prompt_holds_the_schemas():
    tokenizer = tool_tokenizer()
    offered = tokenizer.decode(ChatFormat(tokenizer, SCHEMAS).encode_prompt(QUESTION))
    assert offered.startswith('<|tools|>[{"type": "function", "function": {"name": "search"')
    assert offered.endswith(f"<|user|>{QUESTION}<|assistant|>")
    assert "<|tools|>" not in tokenizer.decode(ChatFormat(tokenizer).encode_prompt(QUESTION))


def test_behind_a_turn_stand_the_templates_own_tokens():
    tokenizer = tool_tokenizer()
    chat = ChatFormat(tokenizer, SCHEMAS)
    turn = "I search. <tool_call>{}</tool_call>"
    found = [*chat.encode_prompt(QUESTION), *chat.encode_response(turn), chat.end_id]
    found += chat.encode_tool_results(QUESTION, RESULTS * 2)
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": turn}, *RESULTS * 2]
    whole = tokenizer.apply_chat_template(messages, tools=SCHEMAS, add_generation_prompt=True, return_dict=False)
    assert found == whole


def test_nothing_but_the_template_stands_there():
    behind = ChatFormat(tool_tokenizer()).encode_tool_results(QUESTION, RESULTS)
    assert tool_tokenizer().decode(behind) == "\n<|tool|>search: room 7 is free\n<|assistant|>"


def test_a_tokenizer_that_marks_blanks_writes_none_in_front_of_a_result():
    tokenizer = blank_marking_tokenizer()
    tokenizer.chat_template = TOOL_TEMPLATE.replace("<|end|>\n", "<s>").replace("<|tool|>", "o").replace("\n", "")
    ids = ChatFormat(tokenizer).encode_tool_results("once", [{"role": "tool", "name": "up", "content": "on"}])
    assert tokenizer.convert_ids_to_tokens(ids)[:3] == ["o", "u", "p"]


@pytest.mark.parametrize(
    ("template", "named"),
    [
        (None, "1 tools and a tokenizer without a chat template"),
        (tiny_tokenizer().chat_template, "ignores its tools"),
        ("{{ raise_exception('no tools here') if tools }}", "no tools here"),
    ],
)
def test_tools_that_the_policy_would_not_see_are_refused(template, named):
    with pytest.raises(ConfigError, match=named):
        ChatFormat(tokenizer_with(template), SCHEMAS)
    ChatFormat(tokenizer_with(template))


@pytest.mark.parametrize(
    ("template", "named"),
    [
        (None, "no chat template to write a tool's result"),
        # earlier turns are dropped, or written without their end token
        (
            TOOL_TEMPLATE.replace("{% for message in messages %}", "{% for message in messages[-1:] %}"),
            "otherwise than",
        ),
        (TOOL_TEMPLATE.replace("<|end|>", ""), "otherwise than it was sampled"),
        (tiny_tokenizer().chat_template, "not tool"),
        (TOOL_TEMPLATE.replace("message['role'] == 'tool'", "false").replace("{% else %}", "{% elif false %}"), "same"),
    ],
)
def test_a_template_that_cannot_go_on_behind_a_result_is_refused(template, named):
    with pytest.raises(ConfigError, match=named):
        ChatFormat(tokenizer_with(template)).require_tool_results()


def test_a_template_that_can_passes():
    ChatFormat(tool_tokenizer(), SCHEMAS).require_tool_results()
