"""Samples from a model in training: what comes back, where it stops, which random numbers it takes."""

import threading

import pytest
import torch

from rlcore.configs import LoraConfig
from rlcore.errors import ConfigError, DataError
from rlcore.forward_backward import AsyncTrainingClient, ForwardBackwardPipeline
from rlcore.forward_backward.sampling import StopStrings
from rlcore.models import PPOModel, add_lora
from tests.support.lane_models import UniformModel
from tests.support.tiny import END_ID, blank_marking_tokenizer, tiny_gpt2, tiny_llama, tiny_tokenizer

PROMPT = [5, 9, 11, 20, 7]


def teacher_forced(model, prompt: list[int], tokens: list[int], temperature: float) -> torch.Tensor:
    """Nats of each token after the ones before it, from the model's own forward pass."""
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.fixture
def pipeline():
    with ForwardBackwardPipeline(tiny_llama()) as pipeline:
        yield pipeline


@pytest.mark.parametrize("prompt", [PROMPT, tuple(PROMPT), torch.tensor(PROMPT), torch.tensor([PROMPT])])
def test_the_documented_call_returns_plain_lists(pipeline, prompt):
    sample = pipeline.sample(prompt=prompt, max_tokens=12, temperature=0.7, top_k=50, top_p=0.9, stop=[END_ID], seed=0)
    assert sample["prompt"] == PROMPT
    assert 0 < len(sample["tokens"]) == len(sample["logprobs"]) <= 12
    assert {type(token) for token in sample["tokens"]} == {int}
    assert {type(logprob) for logprob in sample["logprobs"]} == {float}
    assert max(sample["logprobs"]) <= 0


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_sampled_tokens_at_the_temperature(pipeline, temperature):
    sample = pipeline.sample(PROMPT, 16, temperature=temperature, top_k=8, seed=3)
    expected = teacher_forced(tiny_llama(), PROMPT, sample["tokens"], temperature)
    torch.testing.assert_close(torch.tensor(sample["logprobs"]), expected, rtol=0, atol=1e-5)


def test_temperature_zero_takes_the_most_likely_token(pipeline):
    sample = pipeline.sample(PROMPT, 8, temperature=0)
    ids = torch.tensor([PROMPT + sample["tokens"]])
    assert tiny_llama()(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].argmax(-1).tolist() == sample["tokens"]
    assert pipeline.sample(PROMPT, 8, top_k=1)["tokens"] == sample["tokens"]
    assert pipeline.sample(PROMPT, 8, top_p=0)["tokens"] == sample["tokens"]
    expected = teacher_forced(tiny_llama(), PROMPT, sample["tokens"], 1.0)
    torch.testing.assert_close(torch.tensor(sample["logprobs"]), expected, rtol=0, atol=1e-5)


def test_top_k_is_off_at_minus_one_and_zero(pipeline):
    assert pipeline.sample(PROMPT, 20, top_k=-1, seed=1) == pipeline.sample(PROMPT, 20, top_k=0, seed=1)
    assert pipeline.sample(PROMPT, 20, top_k=2, seed=1) != pipeline.sample(PROMPT, 20, seed=1)


# Random numbers.


def test_a_seed_repeats_a_sample_and_manual_seed_does_so_without_one(pipeline):
    assert pipeline.sample(PROMPT, 20, seed=7) == pipeline.sample(PROMPT, 20, seed=7)
    assert pipeline.sample(PROMPT, 20, seed=7) != pipeline.sample(PROMPT, 20, seed=8)
    torch.manual_seed(0)
    first, second = pipeline.sample(PROMPT, 20), pipeline.sample(PROMPT, 20)
    assert first != second
    torch.manual_seed(0)
    assert pipeline.sample(PROMPT, 20) == first


def test_a_seed_of_ones_own_leaves_torchs_random_numbers_alone(pipeline):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    pipeline.sample(PROMPT, 20, seed=7)
    assert torch.equal(torch.rand(1), expected)


# Where it stops.


def test_without_stop_only_the_length_ends_it(pipeline):
    lengths = {len(pipeline.sample(PROMPT, 40, seed=seed)["tokens"]) for seed in range(5)}
    assert lengths == {40}
    stopped = [pipeline.sample(PROMPT, 40, seed=seed, stop=[END_ID])["tokens"] for seed in range(5)]
    assert any(tokens[-1] == END_ID and len(tokens) < 40 for tokens in stopped)
    for tokens in stopped:
        assert END_ID not in tokens[:-1]


def test_a_stop_token_is_part_of_the_sample(pipeline):
    free = pipeline.sample(PROMPT, 20, seed=2)
    token = free["tokens"][5]
    first = free["tokens"].index(token)
    stopped = pipeline.sample(PROMPT, 20, seed=2, stop=[token])
    assert stopped["tokens"] == free["tokens"][: first + 1]
    assert stopped["logprobs"] == pytest.approx(free["logprobs"][: first + 1], abs=1e-5)


def pieces_until_stop(tokenizer, ids: list[int], strings: list[str]) -> int | None:
    stop = StopStrings(tokenizer, strings)
    return next((count for count in range(1, len(ids) + 1) if stop(ids[:count])), None)


def test_a_stop_text_is_found_across_token_borders_and_inside_tokens():
    tokenizer = tiny_tokenizer()
    ids = tokenizer("Sure! The answer is 7.", add_special_tokens=False)["input_ids"]
    pieces = [tokenizer.decode([token]) for token in ids]
    text = "".join(pieces)
    for start in range(len(text)):
        for length in (1, 2, 3, 7):
            wanted = text[start : start + length]
            seen, expected = "", None
            for count, piece in enumerate(pieces, 1):
                seen += piece
                if expected is None and wanted in seen:
                    expected = count
            assert pieces_until_stop(tokenizer, ids, ["never", wanted]) == expected
    assert any(len(piece) > 1 for piece in pieces)
    assert pieces_until_stop(tokenizer, ids, ["", "never"]) is None


def test_a_character_of_several_tokens_and_a_leading_blank_are_seen():
    tokenizer = tiny_tokenizer()
    ids = tokenizer("a é!", add_special_tokens=False)["input_ids"]
    assert pieces_until_stop(tokenizer, ids, ["é"]) == len(ids) - 1
    tokenizer = blank_marking_tokenizer()
    up = tokenizer.convert_tokens_to_ids("▁up")
    assert tokenizer.decode([up]) == "up"
    assert pieces_until_stop(tokenizer, [up], [" up"]) == 1


def test_a_special_token_may_be_named_by_its_text():
    tokenizer = tiny_tokenizer()
    assert pieces_until_stop(tokenizer, [70, tokenizer.eos_token_id], [tokenizer.eos_token]) == 2


def test_stop_texts_and_stop_tokens_work_together():
    tokenizer = tiny_tokenizer()
    with AsyncTrainingClient(tiny_llama(vocab_size=len(tokenizer)), tokenizer=tokenizer) as client:
        free = client.sample(PROMPT, 30, seed=1)["tokens"]
        text = tokenizer.decode(free[:10])[-2:]
        stopped = client.sample(PROMPT, 30, seed=1, stop=[text, tokenizer.eos_token_id])["tokens"]
        assert stopped == free[: len(stopped)]
        assert text in tokenizer.decode(stopped)
        assert text not in tokenizer.decode(stopped[:-1])
    with ForwardBackwardPipeline(tiny_llama(vocab_size=len(tokenizer))) as pipeline:
        assert pipeline.sample(PROMPT, 30, seed=1, stop=[text], tokenizer=tokenizer)["tokens"] == stopped


def test_a_stop_text_in_the_prompt_ends_nothing():
    tokenizer = tiny_tokenizer()
    prompt = tokenizer("stop", add_special_tokens=False)["input_ids"]
    with ForwardBackwardPipeline(tiny_llama(vocab_size=len(tokenizer)), tokenizer=tokenizer) as pipeline:
        assert len(pipeline.sample(prompt, 10, seed=0, stop=["stop"])["tokens"]) == 10


# The model and the queue.


def test_every_modules_mode_is_as_before():
    model = tiny_gpt2().train()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    with AsyncTrainingClient(model) as client:
        client.sample(PROMPT, 4)
        client.sample(PROMPT, 4, seed=1)
        assert [module.training for module in model.modules()] == modes


def test_it_comes_behind_the_queued_work(pipeline):
    gate = threading.Event()
    pipeline.evaluate(lambda model: gate.wait())

    def make_seventeen_certain(model):
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
            model.model.norm.weight.fill_(1.0)
            model.model.embed_tokens.weight[:] = torch.linspace(1, 2, 16)
            model.model.embed_tokens.weight[17] *= 50

    pipeline.evaluate(make_seventeen_certain)
    threading.Timer(0.05, gate.set).start()
    assert pipeline.sample(PROMPT, 3)["tokens"] == [17, 17, 17]


def test_policies_with_a_critic_or_adapters_are_sampled_too():
    expected = AsyncTrainingClient(tiny_llama()).sample(PROMPT, 8, seed=1)
    for model in (PPOModel(tiny_llama()), add_lora(tiny_llama(), LoraConfig(rank=2))):
        with AsyncTrainingClient(model) as client:
            assert client.sample(PROMPT, 8, seed=1)["tokens"] == expected["tokens"]


def test_a_model_that_is_no_language_model_is_refused():
    with ForwardBackwardPipeline(UniformModel(4)) as pipeline, pytest.raises(ConfigError, match="a UniformModel"):
        pipeline.sample([1], 4)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"stop": ["\n"]}, ConfigError, "but no tokenizer. Pass tokenizer here or to the client"),
        ({"stop": "\n"}, ConfigError, r"Write \['\\n'\]"),
        ({"stop": 3}, ConfigError, r"Write \[3\]"),
        ({"stop": [None]}, ConfigError, "stop: found None, expected token ids and texts"),
        ({"stop": [True]}, ConfigError, "stop: found True"),
        ({"seed": -1}, ConfigError, "seed=-1"),
        ({"max_tokens": 0}, ConfigError, "max_new_tokens=0"),
        ({"temperature": -1.0}, ConfigError, "temperature=-1.0"),
        ({"top_k": -2}, ConfigError, "top_k=-2"),
        ({"top_p": 1.5}, ConfigError, "top_p=1.5"),
        ({"prompt": []}, DataError, "has no token"),
        ({"prompt": "text"}, DataError, "Tokenize the text first"),
        ({"prompt": [[5, 6]]}, DataError, "expected a list of token ids"),
        ({"prompt": [5.0]}, DataError, "expected a list of token ids"),
        ({"prompt": torch.tensor([[5], [6]])}, DataError, r"a prompt of shape \[2, 1\]"),
        ({"prompt": torch.tensor([5.0])}, DataError, "type torch.float32"),
        ({"prompt": [48]}, DataError, "found ids from 48 to 48"),
        ({"max_tokens": 100}, DataError, "exceed the model's context of 64"),
    ],
)
def test_a_wrong_request_is_refused(pipeline, arguments, kind, message):
    with pytest.raises(kind, match=message):
        pipeline.sample(**{"prompt": PROMPT, "max_tokens": 4, **arguments})
