"""Episodes of several turns: tokens stay as sampled, answers stand between them, limits hold."""

from typing import Any

import pytest
import torch

from rlcore.batches import join
from rlcore.environments import Tools
from rlcore.formatting import ChatFormat
from rlcore.models import sampled_logprobs
from rlcore.rollout import EncodedPrompt, turns
from rlcore.rollout.turns import Episode, play_episodes
from rlcore.sampling import SamplingParams
from rlcore.scratch import build_model
from tests.support.hotel import BROKEN_CALL, CALL, HotelEnv, hotel_tokenizer
from tests.support.ppo import SHAPE
from tests.support.scripted import Script, scripted_generate
from tests.support.tools import tool_tokenizer

TOKENIZER = hotel_tokenizer()
END = TOKENIZER.eos_token_id
QUESTION = "Book a room please"


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def words_of(ids: list[int]) -> str:
    return TOKENIZER.decode(ids)


class Playing:
    """Episodes in a hotel, of a random policy or of a script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, context: int = 128, tokenizer=TOKENIZER):
        shape = SHAPE.model_copy(update={"max_positions": context})
        self.model = build_model(shape, tokenizer, seed=1).eval()
        self.environment = HotelEnv()
        self.tools = Tools(self.environment)
        self.chat = ChatFormat(tokenizer, self.tools.schemas)
        self._monkeypatch = monkeypatch

    def follow(self, script: Script | dict[int, str]) -> None:
        """Let the policy say these texts, by the number of turns that the context holds already."""
        if isinstance(script, dict):
            texts = script
            assistant = TOKENIZER.convert_tokens_to_ids("<|assistant|>")

            def script(context: list[int]) -> list[int]:
                return [*ids_of(texts[context.count(assistant) - 1]), END]

        self._monkeypatch.setattr(turns, "generate", scripted_generate(script))

    def prompts(self, count: int = 1) -> list[EncodedPrompt]:
        ids = self.chat.encode_prompt(QUESTION)
        return [EncodedPrompt(QUESTION, ids, {"case_idx": case}, QUESTION) for case in range(count)]

    def play(self, prompts: list[EncodedPrompt] | None = None, **settings: Any) -> list[Episode]:
        prompts = prompts or self.prompts()
        seeds = settings.pop("seeds", [prompt.metadata["case_idx"] for prompt in prompts])
        max_turns = settings.pop("max_turns", 2)
        params = SamplingParams(**{"max_new_tokens": 12, **settings})
        with torch.no_grad():
            return play_episodes(self.model, self.chat, self.tools, prompts, params, seeds=seeds, max_turns=max_turns)


@pytest.fixture
def playing(monkeypatch) -> Playing:
    return Playing(monkeypatch)


def test_a_call_is_answered_in_the_context_and_the_policy_goes_on(playing):
    playing.follow({0: f"a {CALL}", 1: "room 1"})
    (episode,) = playing.play()
    answer = "<|tool|> search: room 1 is free <|assistant|>"
    assert words_of(episode.ids) == f"a {CALL} <|end|> {answer} room 1 <|end|>"
    # a, the call, end; 7 words of the answer; room, 1, end
    assert episode.sampled == [True] * 3 + [False] * 7 + [True] * 3
    assert episode.terminated
    assert episode.messages == [
        {"role": "assistant", "content": f"a {CALL}"},
        {"role": "tool", "name": "search", "content": "room 1 is free"},
        {"role": "assistant", "content": "room 1"},
    ]
    assert episode.text == f"a {CALL} {answer} room 1"


def test_the_context_is_what_the_chat_template_writes_of_the_whole_conversation(playing):
    playing.follow({0: f"a {CALL} {CALL}", 1: "room 1"})
    (episode,) = playing.play()
    messages = [{"role": "user", "content": QUESTION}, *episode.messages]
    whole = TOKENIZER.apply_chat_template(messages, tools=playing.tools.schemas, return_dict=False)
    assert playing.chat.encode_prompt(QUESTION) + episode.ids == whole


def test_sampled_tokens_stay_though_their_text_has_fewer(monkeypatch):
    playing = Playing(monkeypatch, 512, tool_tokenizer())
    end = playing.chat.end_id
    spelled = [id_ for letter in f"room 1 is free {CALL}" for id_ in playing.chat.encode_response(letter)]
    text = playing.chat.decode_response(spelled)
    assert len(playing.chat.encode_response(text)) < len(spelled)
    playing.follow(lambda context: [*spelled, end])
    (episode,) = playing.play(max_new_tokens=200)
    assert [message["content"] for message in episode.messages] == [text, "room 1 is free", text]
    sampled = [id_ for id_, sampled in zip(episode.ids, episode.sampled, strict=True) if sampled]
    assert sampled == [*spelled, end] * 2


def test_log_probabilities_are_those_of_the_whole_context(playing):
    playing.follow({0: CALL, 1: "room 1"})
    prompts = playing.prompts(2)
    episodes = playing.play(prompts, temperature=0.7)
    sequences = join(
        [prompt.ids for prompt in prompts], [e.ids for e in episodes], 0, [episode.sampled for episode in episodes]
    )
    whole = sampled_logprobs(playing.model, sequences, 0.7)
    for row, episode in enumerate(episodes):
        torch.testing.assert_close(episode.logprobs, whole[row, : len(episode.ids)], rtol=1e-5, atol=1e-6)
        assert episode.logprobs[~torch.tensor(episode.sampled)].count_nonzero() == 0


def test_a_malformed_call_is_answered_with_an_error(playing):
    playing.follow({0: BROKEN_CALL, 1: "please"})
    (episode,) = playing.play()
    assert episode.messages[1]["content"].startswith(
        "Error: found ['name'], expected an object with name and arguments"
    )
    assert episode.terminated


def test_rows_without_a_call_are_finished_while_others_go_on(playing):
    # the second of the rows has a longer prompt, by which the script knows it
    first, second = playing.prompts(2)
    second = EncodedPrompt(QUESTION, [*ids_of("please"), *second.ids], second.metadata, QUESTION)
    playing.follow(lambda context: [*ids_of("room" if context[0] == second.ids[0] else CALL), END])
    episodes = playing.play([first, second])
    assert [len(episode.messages) for episode in episodes] == [3, 1]
    assert [episode.terminated for episode in episodes] == [True, True]
    assert episodes[1].sampled == [True, True]


def test_calls_of_the_last_turn_are_text(playing):
    playing.follow({0: CALL, 1: CALL})
    (episode,) = playing.play()
    assert [message["role"] for message in episode.messages] == ["assistant", "tool", "assistant"]
    assert episode.terminated
    (episode,) = playing.play(max_turns=1)
    assert episode.messages == [{"role": "assistant", "content": CALL}]


def test_three_turns(playing):
    playing.follow({0: CALL, 1: CALL, 2: "room 1"})
    (episode,) = playing.play(max_turns=3)
    assert [message["role"] for message in episode.messages] == ["assistant", "tool"] * 2 + ["assistant"]
    assert sum(episode.sampled) == 2 + 2 + 3


def test_the_token_budget_is_that_of_all_turns(playing):
    # 3 of 5 tokens are spent on the first turn, so the second has 2 and no end
    playing.follow({0: f"a {CALL}", 1: "room 1"})
    (episode,) = playing.play(max_new_tokens=5)
    assert sum(episode.sampled) == 5
    assert words_of(episode.ids[-2:]) == "room 1"
    assert not episode.terminated


def test_a_call_without_a_token_left_behind_it_is_not_run(playing):
    calls = []
    playing.environment.call_tool = lambda *call: calls.append(call)
    playing.tools = Tools(playing.environment)
    playing.follow({0: f"a {CALL}"})
    (episode,) = playing.play(max_new_tokens=3)
    assert words_of(episode.ids) == f"a {CALL} <|end|>"
    assert not episode.terminated
    assert calls == []


def test_a_turn_that_was_cut_calls_nothing(playing):
    playing.follow({0: f"{CALL} a"})
    (episode,) = playing.play(max_new_tokens=2)
    assert len(episode.messages) == 1
    assert not episode.terminated


@pytest.mark.parametrize(("spare", "goes_on"), [(7, False), (8, True)])
def test_an_answer_and_a_token_behind_it_have_to_fit_into_the_context(monkeypatch, spare, goes_on):
    # 19 tokens of prompt, 2 of the turn, 7 of the answer, and at least one that is sampled
    playing = Playing(monkeypatch, context=19 + 2 + spare)
    assert len(playing.prompts()[0].ids) == 19
    playing.follow({0: CALL, 1: "room 1"})
    (episode,) = playing.play(max_new_tokens=4)
    assert len(episode.ids) == (10 if goes_on else 2)
    assert not episode.terminated


class Talkative(Tools):
    """Answers every turn, at a length that depends on the case."""

    def called_in(self, turn: str) -> bool:
        return True

    def answers(self, turn: str, case_idx: int) -> list[dict[str, str]]:
        return [{"role": "tool", "name": "search", "content": " ".join(["free"] * (1 + 5 * case_idx))}]


@pytest.mark.parametrize("context", [128, 52])
def test_an_episode_is_what_it_is_alone_whatever_the_others_need(monkeypatch, context):
    # a context of 52 has room for the answers of the first cases only, and cuts turns of others
    playing = Playing(monkeypatch, context)
    playing.tools = Talkative(playing.environment)
    playing.model.get_output_embeddings().weight.data[END] *= 1.5
    prompts = playing.prompts(4)
    together = playing.play(prompts, max_turns=4, max_new_tokens=20)
    alone = [playing.play([prompt], max_turns=4, max_new_tokens=20)[0] for prompt in prompts]
    assert [(e.ids, e.sampled, e.terminated) for e in together] == [(e.ids, e.sampled, e.terminated) for e in alone]
    assert all(len(prompt.ids) + len(e.ids) <= context for prompt, e in zip(prompts, together, strict=True))
    assert all(1 <= sum(episode.sampled) <= 20 for episode in together)
    assert max(len(episode.messages) for episode in together) > 3


def test_each_turn_draws_from_a_stream_of_its_own(playing, monkeypatch):
    playing.follow({0: CALL, 1: CALL, 2: "room 1"})
    scripted, seen = turns.generate, []

    def generate(*arguments, seeds, **settings):
        seen.append(seeds)
        return scripted(*arguments, seeds=seeds, **settings)

    monkeypatch.setattr(turns, "generate", generate)
    playing.play(playing.prompts(2), seeds=[4, 5], max_turns=3)
    assert [len(seeds) for seeds in seen] == [2, 2, 2]
    assert seen[0] == [4, 5]
    assert len({seed for seeds in seen for seed in seeds}) == 6


def test_a_row_is_repeated_by_its_seed(playing):
    playing.tools = Talkative(playing.environment)
    prompts = playing.prompts(2)
    first, again, other = (playing.play(prompts, seeds=seeds) for seeds in ([4, 5], [4, 5], [5, 5]))
    assert [episode.ids for episode in first] == [episode.ids for episode in again]
    assert first[0].ids != other[0].ids
    assert first[1].ids == other[1].ids
