"""Episodes of several turns: the policy calls tools, reads what they answer and goes on.

The context is exact in tokens. What was sampled stays as it was sampled; behind the end token of a turn stands what the
chat template writes for the answers, and the policy goes on from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from rlcore.environments import Tools
from rlcore.formatting import ChatFormat
from rlcore.models import CausalLM, context_length
from rlcore.rollout.collection import Response
from rlcore.rollout.prompts import EncodedPrompt
from rlcore.sampling import SamplingParams, generate
from rlcore.streams import stream_seed


@dataclass(frozen=True, eq=False)
class Episode(Response):
    """Several turns and the answers between them. The text is the whole of it behind the prompt."""

    messages: list[dict[str, str]]
    """Turns of the assistant and answers of the tools."""


def play_episodes(
    model: CausalLM,
    chat: ChatFormat,
    tools: Tools,
    prompts: Sequence[EncodedPrompt],
    params: SamplingParams,
    *,
    seeds: Sequence[int],
    max_turns: int,
) -> list[Episode]:
    """One episode for each prompt: a turn that calls tools is answered, and the policy goes on in the next turn.

    An episode ends with a turn without a call, and after max_turns. It is cut where its sampled tokens reach
    params.max_new_tokens, all its turns together, or where an answer and one more token do not fit into the model's
    context. A call behind which no token is left is not run.

    Args:
        model: the policy.
        chat: format that shows the tools.
        tools: answer the calls. Where the device runs out of memory, an episode is played and its tools are run again.
        prompts: at least one, with `case_idx` in their metadata.
        params: how to sample.
        seeds: one for each prompt; each turn draws from a stream of its own.
        max_turns: at least 1; calls in the last turn are not run.

    Raises:
        ConfigError: the chat template cannot go on behind a call.
        DataError: see generate, or a tool returned something else than text.
        TrainingDiverged: the model's probabilities are not numbers.
    """
    context = context_length(model)
    states = [_State(prompt, params.max_new_tokens, context) for prompt in prompts]
    for turn in range(max_turns):
        running = [row for row, state in enumerate(states) if state.running]
        for rows, limit in _batches(states, running):
            samples = generate(
                model,
                [[*states[row].prompt.ids, *states[row].ids] for row in rows],
                replace(params, max_new_tokens=limit),
                seeds=[stream_seed(seeds[row], turn) if turn else seeds[row] for row in rows],
                end_ids=[chat.end_id],
                pad_id=chat.pad_id,
            )
            for row, ids, logprobs in zip(rows, samples.response_lists(), samples.logprobs.tolist(), strict=True):
                states[row].add_turn(ids, logprobs, chat)
        if turn + 1 < max_turns:
            for row in running:
                states[row].call_tools(tools, chat)
    return [state.episode(chat) for state in states]


@dataclass(eq=False)
class _State:
    """An episode while it is played."""

    prompt: EncodedPrompt
    budget: int
    context: int | None
    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    running: bool = True
    terminated: bool = False

    @property
    def room(self) -> int:
        """Tokens that may still be sampled."""
        return self.budget if self.context is None else min(self.budget, self.context - self._length)

    def can_hold(self, count: int) -> bool:
        """Whether so many more tokens fit into the context."""
        return self.context is None or self._length + count <= self.context

    def add_turn(self, ids: list[int], logprobs: list[float], chat: ChatFormat) -> None:
        """Append a turn, without what was sampled beyond the room of this episode."""
        ids = ids[: self.room]
        self._append(ids, logprobs[: len(ids)], sampled=True)
        self.budget -= len(ids)
        self.messages.append({"role": "assistant", "content": chat.decode_response(ids)})
        self.running, self.terminated = False, ids[-1] == chat.end_id

    def call_tools(self, tools: Tools, chat: ChatFormat) -> None:
        """Answer the calls of a turn and go on, where there is room for it; without a call the episode has ended."""
        turn = self.messages[-1]["content"]
        if not self.terminated or not tools.called_in(turn):
            return
        self.terminated = False
        if self.room < 1:
            return
        answers = tools.answers(turn, self.prompt.metadata["case_idx"])
        ids = chat.encode_tool_results(self.prompt.prompt, answers)
        if not self.can_hold(len(ids) + 1):
            return
        self._append(ids, [0.0] * len(ids), sampled=False)
        self.messages += answers
        self.running = True

    def episode(self, chat: ChatFormat) -> Episode:
        """What was played."""
        return Episode(
            text=chat.decode_response(self.ids),
            ids=self.ids,
            sampled=self.sampled,
            logprobs=torch.tensor(self.logprobs),
            values=None,
            terminated=self.terminated,
            messages=self.messages,
        )

    @property
    def _length(self) -> int:
        return len(self.prompt.ids) + len(self.ids)

    def _append(self, ids: list[int], logprobs: list[float], *, sampled: bool) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.sampled += [sampled] * len(ids)


def _batches(states: list[_State], rows: list[int]) -> list[tuple[list[int], int]]:
    """Rows to sample together, and how many tokens: what the roomiest of them may get, in the context of all of them.

    What a row gets beyond its own room is cut off, which changes nothing before it.
    """
    batches = []
    while rows:
        limit = max(states[row].room for row in rows)
        fitting = [row for row in rows if states[row].can_hold(limit)]
        batches.append((fitting, limit))
        rows = [row for row in rows if row not in fitting]
    return batches
