"""The policy as a chat model that MLflow serves: messages in, a chat completion out.

MLflow stores this file with the checkpoint and runs it wherever the model is served. Heavy imports wait until the model
is loaded, because MLflow also reads the file when it stores the model.
"""

import secrets
import time
import uuid
from collections.abc import Hashable, Mapping
from typing import Any

import pandas
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

DEFAULT_MAX_TOKENS = 128
DEFAULT_TEMPERATURE = 1.0


class ChatModel(PythonModel):
    """Answers chat requests with the policy whose folder is the artifact `policy`."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load policy and tokenizer, on a GPU where there is one."""
        from rlcore.formatting import ChatFormat
        from rlcore.models import choose_device, load_causal_lm, load_tokenizer

        folder = context.artifacts["policy"]
        self.model = load_causal_lm(folder, device=choose_device(None))
        self.chat = ChatFormat(load_tokenizer(folder))

    def predict(
        self, context: PythonModelContext, model_input: pandas.DataFrame, params: dict[str, Any] | None = None
    ) -> Any:
        """One chat completion for each request.

        Args:
            context: not read.
            model_input: a request in each row; MLflow makes one row of a request that comes as a dict. Columns:
                `messages`, a list of {"role", "content"}, and optionally `max_tokens`, `temperature` (0 always takes
                the likeliest token) and `seed`.
            params: not read.

        Returns:
            a dict as chat completion interfaces return it; a list of them for several requests.

        Raises:
            DataError: the messages have a form that the model's chat template rejects.
        """
        answers = [self._answer(request) for request in model_input.to_dict("records")]
        return answers[0] if len(answers) == 1 else answers

    def _answer(self, request: Mapping[Hashable, Any]) -> dict[str, Any]:
        from rlcore.models import context_length
        from rlcore.sampling import SamplingParams, generate

        prompt_ids = self.chat.encode_prompt(_prompt_of(request["messages"]))
        limit = int(_given(request, "max_tokens", DEFAULT_MAX_TOKENS))
        context = context_length(self.model)
        if context is not None:
            # A long chat loses its beginning, so that up to half of the context is left for the answer.
            prompt_ids = self.chat.cut_prompt(prompt_ids, context - min(limit, context // 2))
            limit = min(limit, context - len(prompt_ids))
        samples = generate(
            self.model,
            [prompt_ids],
            SamplingParams(
                max_new_tokens=limit,
                temperature=float(_given(request, "temperature", DEFAULT_TEMPERATURE)),
            ),
            seeds=[int(_given(request, "seed", secrets.randbits(63)))],
            end_ids=[self.chat.end_id],
            pad_id=self.chat.pad_id,
        )
        response_ids = samples.response_lists()[0]
        message = {"role": "assistant", "content": self.chat.decode_response(response_ids)}
        reason = "stop" if bool(samples.terminated[0]) else "length"
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "rlhf-policy",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {
                "prompt_tokens": len(prompt_ids),
                "completion_tokens": len(response_ids),
                "total_tokens": len(prompt_ids) + len(response_ids),
            },
        }


def _prompt_of(messages: Any) -> Any:
    """A single message of the user as text, so that models without a chat template answer too."""
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in messages]
    return turns[0]["content"] if len(turns) == 1 and turns[0]["role"] == "user" else turns


def _given(request: Mapping[Hashable, Any], name: str, default: float) -> float:
    """A setting of the request; a table marks the missing ones with None or NaN."""
    value = request.get(name)
    return default if value is None or pandas.isna(value) else value


set_model(ChatModel())
