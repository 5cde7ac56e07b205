"""A chat template that knows tools, and a tokenizer with it."""

from functools import cache

from transformers import PreTrainedTokenizerFast

from rlcore.scratch import train_tokenizer

TOOL_TEMPLATE = (
    "{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}<|tool|>{{ message['name'] }}: {{ message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>\n"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def schema(name: str) -> dict:
    """The schema of a tool without parameters."""
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": f"{name}s", "parameters": parameters}}


@cache
def tool_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with TOOL_TEMPLATE; merges such as ", " cross words."""
    tokenizer = train_tokenizer(["Room 7 is free. Which rooms are free?", "search: room 7 is free"], vocab_size=300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|tool|>", "<|tools|>"]})
    tokenizer.chat_template = TOOL_TEMPLATE
    return tokenizer
