"""The served chat model keeps a request within the policy's context."""

from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest

from rlcore.configs import ScratchModelConfig
from rlcore.models import save_causal_lm
from rlcore.scratch import build_model
from tasks.serving.chat_model import ChatModel
from tests.support.tiny import tiny_tokenizer

CONTEXT = 32


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> ChatModel:
    folder: Path = tmp_path_factory.mktemp("policy")
    shape = ScratchModelConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, max_positions=CONTEXT)
    save_causal_lm(build_model(shape, tiny_tokenizer(), seed=1), tiny_tokenizer(), folder)
    model = ChatModel()
    model.load_context(SimpleNamespace(artifacts={"policy": str(folder)}))
    return model


def usage(served: ChatModel, content: str, **settings) -> dict[str, int]:
    request = {"messages": [{"role": "user", "content": content}], "seed": 1, **settings}
    return served.predict(None, pandas.DataFrame([request]))["usage"]


def test_a_long_chat_loses_its_beginning_and_is_answered(served):
    # 40 words are more than the 32 tokens of the context; half of it is kept for an answer of up to 128 tokens
    counts = usage(served, "maybe " * 40)
    assert counts["prompt_tokens"] == CONTEXT // 2
    assert 1 <= counts["completion_tokens"] <= CONTEXT // 2
    # a short answer leaves the chat all but its own length
    assert usage(served, "maybe " * 40, max_tokens=4)["prompt_tokens"] == CONTEXT - 4


def test_a_chat_that_fits_is_not_cut(served):
    counts = usage(served, "What is 1 plus 2?", max_tokens=4)
    assert counts["prompt_tokens"] == len(served.chat.encode_prompt("What is 1 plus 2?"))
    assert counts["completion_tokens"] <= 4
