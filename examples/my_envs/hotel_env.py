r"""A hotel whose guests want the cheapest room of a kind: the policy asks the desk, reads the answer, and names a room.

    cd examples
    rlhf llm --train --trainer grpo --model Qwen/Qwen3-0.6B --project-name hotel-model \
      --rl-env-module my_envs.hotel_env --rl-env-class HotelEnv --rl-max-turns 2

The chat template of the model has to show tools, as those of Qwen do. With one turn, which is the default, the policy
learns to ask; with two it learns to use the answer.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import datasets

Message = dict[str, str]

SYSTEM = "You help guests of a hotel. Look for rooms with the tool first. Then answer with the number of one room."
VIEWS = ("sea", "garden", "street")


@dataclass(frozen=True)
class Room:
    """A room of the hotel."""

    number: int
    view: str
    price: int


ROOMS = (
    Room(11, "sea", 180), Room(12, "garden", 95), Room(14, "street", 70),
    Room(21, "sea", 150), Room(22, "garden", 110), Room(24, "street", 55),
    Room(31, "sea", 210), Room(32, "garden", 120), Room(34, "street", 85),
)  # fmt: skip


class HotelEnv:
    """Half a point for asking the desk for the right kind of room, half for then naming the cheapest and no other.

    Args:
        guests: how many there are; each wants one of the views.
    """

    def __init__(self, guests: int = 30):
        self.guests = guests

    def build_dataset(self, tokenizer: Any) -> datasets.Dataset:
        """One conversation for each guest."""
        prompts = [
            [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"The cheapest room with a view of the {self.view(guest)}, please."},
            ]
            for guest in range(self.guests)
        ]
        return datasets.Dataset.from_dict({"prompt": prompts, "case_idx": list(range(self.guests))})

    def get_tools(self) -> list[dict[str, Any]]:
        """The desk's list of rooms."""
        view = {"type": "string", "enum": list(VIEWS), "description": "what the room looks out on"}
        return [
            {
                "type": "function",
                "function": {
                    "name": "find_rooms",
                    "description": "Rooms with a view, their numbers and prices.",
                    "parameters": {"type": "object", "properties": {"view": view}, "required": ["view"]},
                },
            }
        ]

    def call_tool(self, name: str, arguments: dict[str, Any], case_idx: int) -> str:
        """The rooms with this view. A view that there is not is answered with those that there are."""
        rooms = [f"room {room.number} costs {room.price}" for room in ROOMS if room.view == arguments["view"]]
        return ", ".join(rooms) or f"no such view, there are {', '.join(VIEWS)}"

    def score_episode(self, model: Any, tokenizer: Any, completion: list[Message], case_idx: int) -> float:
        """0, 0.5 for the right question, 1 for the right room behind it."""
        right_call = {"name": "find_rooms", "arguments": {"view": self.view(case_idx)}}
        asked = right_call in calls(completion)
        return 0.5 * asked + 0.5 * (asked and named_rooms(completion[-1]["content"]) == {self.cheapest(case_idx)})

    def view(self, case_idx: int) -> str:
        """What a guest wants to look out on."""
        return VIEWS[case_idx % len(VIEWS)]

    def cheapest(self, case_idx: int) -> int:
        """Number of the room that a guest should get."""
        return min((room for room in ROOMS if room.view == self.view(case_idx)), key=lambda room: room.price).number


def calls(completion: list[Message]) -> Iterator[Any]:
    """What the policy asked the desk, as far as it can be read."""
    for message in completion:
        if message["role"] == "assistant":
            for body in re.findall(r"<tool_call>(.*?)</tool_call>", message["content"], re.DOTALL):
                try:
                    yield json.loads(body)
                except json.JSONDecodeError:
                    continue


def named_rooms(answer: str) -> set[int]:
    """Numbers of the hotel's rooms in an answer."""
    return {int(number) for number in re.findall(r"\d+", answer)} & {room.number for room in ROOMS}
