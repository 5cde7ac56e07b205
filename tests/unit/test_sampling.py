"""Sampling: which token a number draws, when rows end, what a wrong request says."""

import logging

import pytest
import torch
from torch import nn

from rlcore.errors import ConfigError, DataError, TrainingDiverged
from rlcore.sampling import SamplingParams, decoding, engine, generate
from rlcore.sampling.decoding import RecomputingDecoding, decoding_for
from rlcore.sampling.tokens import draw, sample_tokens, uniform_streams
from tests.support.tiny import END_ID, PAD_ID, tiny_gpt2, tiny_llama, tiny_qwen2

PROMPTS = [[5, 9, 11, 20, 7], [6], [8, 13, 40], [22, 4], [30, 31, 32, 33], [17]]
ALMOST_ONE = 1 - 2.0**-24


def sample(model, prompts=PROMPTS, *, seeds=None, new=12, end_ids=(END_ID,), value_head=None, stop=None, **settings):
    return generate(
        model,
        prompts,
        SamplingParams(new, **settings),
        seeds=range(len(prompts)) if seeds is None else seeds,
        end_ids=end_ids,
        pad_id=PAD_ID,
        value_head=value_head,
        stop=stop,
    )


def texts(samples):
    return [ids[mask].tolist() for ids, mask in zip(samples.response_ids, samples.response_mask, strict=True)]


class Watched:
    """A decoding that tells how many rows it read and went on with."""

    def __init__(self, inner, seen):
        self.inner, self.seen = inner, seen

    def start(self, prompt_ids, prompt_mask):
        self.seen.append(("start", len(prompt_ids)))
        return self.inner.start(prompt_ids, prompt_mask)

    def advance(self, tokens):
        self.seen.append(("advance", len(tokens)))
        return self.inner.advance(tokens)

    def keep(self, rows):
        self.seen.append(("keep", len(rows)))
        self.inner.keep(rows)


@pytest.fixture
def seen(monkeypatch):
    """What the decoding of a `sample` call was asked for."""
    calls = []
    monkeypatch.setattr(
        engine, "decoding_for", lambda model: lambda *arguments: Watched(decoding_for(model)(*arguments), calls)
    )
    return calls


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 1), (0.2499, 1), (0.25, 2), (0.7499, 2), (0.75, 4), (ALMOST_ONE, 4)],
)
def test_a_token_owns_the_interval_of_its_probability(uniform, token):
    # intervals: token 1 [0, .25), token 2 [.25, .75), token 4 [.75, 1); tokens 0, 3 and 5 own nothing
    probabilities = torch.tensor([[0.0, 0.25, 0.5, 0.0, 0.25, 0.0]])
    assert draw(probabilities, torch.tensor([uniform])).item() == token


def test_rounding_never_draws_a_banned_token():
    # 3000 times float32(1/3000) does not sum to 1; u = 1 is what rounding could make of the largest u
    probabilities = torch.cat([torch.zeros(1, 5), torch.full((1, 3000), 1 / 3000), torch.zeros(1, 5)], dim=1)
    for total in (0.7, 1.0, 1.3):
        drawn = [draw(total * probabilities, torch.tensor([uniform])).item() for uniform in (0.0, ALMOST_ONE, 1.0)]
        assert drawn == [5, 3004, 3004]


def test_streams_depend_on_their_seed_alone():
    streams = uniform_streams([7, 2**63, 7], 5)
    assert torch.equal(streams[0], streams[2])
    assert torch.equal(uniform_streams([2**63], 5)[0], streams[1])
    assert torch.equal(uniform_streams([7], 3)[0], streams[0, :3])
    assert not torch.equal(streams[0], streams[1])
    assert streams.dtype == torch.float32
    assert 0 <= streams.min() <= streams.max() < 1


def test_logprobs_are_of_the_whole_distribution_at_the_temperature():
    # logits (2, 1, 0) at T = 0.5 are (4, 2, 0): ln p0 = -ln(1 + e^-2 + e^-4) = -0.142932, whatever top-k leaves
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    for settings in ({}, {"top_k": 1}, {"top_p": 0.1}):
        tokens, logprobs = sample_tokens(logits, torch.tensor([0.0]), SamplingParams(1, 0.5, **settings))
        assert tokens.item() == 0
        assert logprobs.item() == pytest.approx(-0.142932, abs=1e-6)


def test_temperature_zero_is_greedy_with_the_raw_logprob():
    # ln softmax(1, 2, 1.5)[1] = -ln(1 + e^-1 + e^-0.5) = -0.680270
    for temperature in (0.0, 1e-6):
        tokens, logprobs = sample_tokens(
            torch.tensor([[1.0, 2.0, 1.5]]), torch.tensor([ALMOST_ONE]), SamplingParams(1, temperature)
        )
        assert tokens.item() == 1
        assert logprobs.isfinite().all()
    assert sample_tokens(torch.tensor([[1.0, 2.0, 1.5]]), torch.zeros(1), SamplingParams(1, 0.0))[1].item() == (
        pytest.approx(-0.680270, abs=1e-6)
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 1.5},
        {"top_p": -0.1},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        SamplingParams(**{"max_new_tokens": 4, **settings})


def test_a_response_ends_with_its_end_token_and_padding_follows():
    samples = sample(tiny_llama(), new=40)
    assert samples.terminated.any()
    assert not samples.terminated.all()
    for row, response in enumerate(texts(samples)):
        assert END_ID not in response[:-1]
        assert (response[-1] == END_ID) == samples.terminated[row].item()
        assert samples.terminated[row] or len(response) == 40
    padding = ~samples.response_mask
    assert (samples.response_ids[padding] == PAD_ID).all()
    assert samples.logprobs[padding].abs().max() == 0
    assert samples.values is None


def test_the_batch_is_no_wider_than_its_longest_response():
    end_everywhere = list(range(48))
    samples = sample(tiny_llama(), end_ids=end_everywhere)
    assert samples.response_ids.shape == (6, 1)
    assert samples.terminated.all()
    assert not sample(tiny_llama(), end_ids=[]).terminated.any()


def test_a_stop_condition_ends_a_row_as_an_end_token_does():
    # after 2 tokens for a row whose first token is even, after 5 for the others
    free = texts(sample(tiny_llama(), end_ids=[]))
    asked = []

    def stop(tokens):
        asked.append(list(tokens))
        return len(tokens) == (5 if tokens[0] % 2 else 2)

    samples = sample(tiny_llama(), end_ids=[], stop=stop)
    lengths = [5 if response[0] % 2 else 2 for response in free]
    assert set(lengths) == {2, 5}
    assert texts(samples) == [response[:length] for response, length in zip(free, lengths, strict=True)]
    assert samples.terminated.all()
    # asked once for each token of each row, and never again for a row that has ended
    assert sorted(map(len, asked)) == sorted(step for length in lengths for step in range(1, length + 1))


def test_a_stop_condition_is_not_asked_where_an_end_token_ended_the_row():
    asked = []
    samples = sample(tiny_llama(), stop=lambda tokens: asked.append(tokens[-1]), new=40)
    assert END_ID not in asked
    assert texts(samples) == texts(sample(tiny_llama(), new=40))


def test_an_end_token_in_the_prompt_ends_nothing():
    # a model whose BOS is its end token starts each prompt with it
    samples = sample(tiny_llama(), [[END_ID, 5, 6], [END_ID]])
    assert (samples.response_mask.sum(1) > 1).all()


def test_an_end_token_equal_to_the_padding_is_part_of_the_response():
    prompts, model = [[5, 6], [9]], tiny_llama()
    samples = generate(model, prompts, SamplingParams(40), seeds=[3, 4], end_ids=[END_ID], pad_id=END_ID)
    assert texts(samples) == texts(sample(model, prompts, seeds=[3, 4], new=40))
    assert [response[-1] == END_ID for response in texts(samples)] == samples.terminated.tolist()


def test_responses_as_lists_have_no_padding():
    samples = sample(tiny_llama(), new=40)
    lengths = samples.response_mask.sum(1).tolist()
    assert len(set(lengths)) > 1
    expected = [ids[:length] for ids, length in zip(samples.response_ids.tolist(), lengths, strict=True)]
    assert samples.response_lists() == expected


def test_equal_seeds_draw_equally_and_other_seeds_do_not():
    model = tiny_llama()
    torch.manual_seed(0)
    first = texts(sample(model))
    torch.manual_seed(1)
    assert texts(sample(model)) == first
    assert texts(sample(model, seeds=range(100, 106))) != first


def test_a_row_does_not_depend_on_its_neighbours_or_its_place():
    model = tiny_llama()
    together = texts(sample(model))
    assert [texts(sample(model, [prompt], seeds=[row]))[0] for row, prompt in enumerate(PROMPTS)] == together
    order = [4, 0, 5, 2, 1, 3]
    assert texts(sample(model, [PROMPTS[row] for row in order], seeds=order)) == [together[row] for row in order]


def test_finished_rows_leave_the_batch_and_change_nothing(monkeypatch, seen):
    model = tiny_llama()
    compacted = sample(model, new=40)
    sizes = [rows for call, rows in seen if call == "advance"]
    assert sizes[0] == 6
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 6
    assert any(call == "keep" for call, _ in seen)
    monkeypatch.setattr(engine, "COMPACT_AT", 0.0)
    whole = sample(model, new=40)
    assert texts(whole) == texts(compacted)
    torch.testing.assert_close(whole.logprobs, compacted.logprobs, rtol=0, atol=1e-5)


def test_sampling_stops_when_all_rows_ended(seen):
    lengths = sample(tiny_llama(), [[22, 4]] * 4, seeds=[1, 2, 3, 4], new=40).response_mask.sum(1)
    assert sum(call == "advance" for call, _ in seen) == lengths.max() - 1


@pytest.mark.parametrize("stop", [None, lambda tokens: len(tokens) == 1 + tokens[0] % 20])
def test_looking_rarely_at_ended_rows_changes_nothing(monkeypatch, stop):
    model = tiny_llama()
    expected = sample(model, new=40, stop=stop)
    monkeypatch.setattr(engine, "CPU_LOOK_INTERVAL", 8)
    rarely = sample(model, new=40, stop=stop)
    assert texts(rarely) == texts(expected)
    assert torch.equal(rarely.terminated, expected.terminated)
    assert rarely.response_ids.shape == expected.response_ids.shape


def test_repeated_prompts_are_read_once(seen):
    prompts = [[5, 6, 7], [9], [5, 6, 7], [9], [5, 6, 7]]
    model = tiny_llama()
    together = sample(model, prompts)
    assert seen[:2] == [("start", 2), ("keep", 5)]
    alone = [texts(sample(model, [prompt], seeds=[row]))[0] for row, prompt in enumerate(prompts)]
    assert texts(together) == alone


def test_no_gradient_and_each_modules_mode_as_before():
    model = tiny_gpt2().train()
    model.transformer.h[0].eval()
    samples = sample(model, value_head=nn.Sequential(nn.Linear(16, 1), nn.Flatten(0)))
    assert not samples.logprobs.requires_grad
    # usable in an autograd graph afterwards, unlike tensors of inference mode
    (samples.logprobs * torch.ones(1, requires_grad=True)).sum().backward()
    assert (model.training, model.transformer.h[0].training, model.transformer.h[1].training) == (True, False, True)

    def fail(hidden):
        raise KeyError

    with pytest.raises(KeyError):
        sample(model, value_head=fail)
    assert (model.training, model.transformer.h[0].training, model.transformer.h[1].training) == (True, False, True)


@pytest.mark.parametrize(
    ("prompts", "seeds", "message"),
    [
        ([], [], "0 prompts"),
        ([[5], [6]], [1], "2 prompts and 1 seeds"),
        ([[5], []], [1, 2], "Prompt 1 has no token"),
        ([[5], [5] * 53], [1, 2], "Prompt 1: 53 tokens and 12 new ones exceed the model's context of 64"),
        ([[5], [48]], [1, 2], "Prompt 1: found ids from 48 to 48, expected 0 to 47"),
        ([[-1, 4], [5]], [1, 2], "Prompt 0: found ids from -1 to 4"),
    ],
)
def test_a_wrong_request_names_its_row(prompts, seeds, message):
    with pytest.raises(DataError, match=message):
        sample(tiny_llama(), prompts, seeds=seeds)


def test_the_longest_prompt_that_fits_is_sampled():
    assert sample(tiny_gpt2(), [[5] * 52], seeds=[1]).response_mask.sum() > 0


def test_probabilities_that_are_no_numbers_stop_sampling():
    model = tiny_llama()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="not finite"):
        sample(model)
    with pytest.raises(TrainingDiverged, match="not finite"):
        sample(model, temperature=0.0)


def test_a_new_model_is_tried_out_once(monkeypatch):
    tried = []
    monkeypatch.setattr(decoding, "_reproduces_forward", lambda model, candidate: tried.append(candidate) or True)
    model = tiny_llama()
    assert decoding_for(model) is decoding_for(model)
    assert len(tried) == 1


def test_buffers_are_tried_only_where_no_layer_has_a_window():
    # a window of thousands of tokens would outlast any quick comparison
    assert len(decoding._cached_candidates(tiny_llama())) == 2
    windowed = tiny_qwen2(use_sliding_window=True, sliding_window=4, max_window_layers=1)
    assert len(decoding._cached_candidates(windowed)) == 1
    assert len(decoding._cached_candidates(tiny_llama(attn_implementation="eager"))) == 1


def cached(parts, capacity, step_mask):
    return decoding.CachedDecoding(parts, decoding.DynamicCache(), capacity, step_mask)


def blind_to_padding(parts, capacity):
    return cached(parts, capacity, torch.ones_like)


def counting_padding(parts, capacity):
    parts.arguments = parts.arguments - {"position_ids"}
    return cached(parts, capacity, lambda mask: mask)


def raising(parts, capacity):
    return decoding.CachedDecoding(parts, object(), capacity, lambda mask: mask)


@pytest.mark.parametrize("wrong", [blind_to_padding, counting_padding, raising])
def test_a_wrong_cache_is_found_out_and_replaced_by_recomputing(monkeypatch, caplog, wrong):
    expected = texts(sample(tiny_gpt2()))
    monkeypatch.setattr(decoding, "_cached_candidates", lambda model: [wrong])
    model = tiny_gpt2()
    with caplog.at_level(logging.WARNING, logger=decoding.__name__):
        assert texts(sample(model)) == expected
    assert decoding_for(model) is RecomputingDecoding
    assert "GPT2LMHeadModel: no key-value cache" in caplog.text


def test_a_right_cache_behind_a_wrong_one_is_taken(monkeypatch):
    def right(parts, capacity):
        return cached(parts, capacity, lambda mask: mask)

    monkeypatch.setattr(decoding, "_cached_candidates", lambda model: [blind_to_padding, right])
    assert decoding_for(tiny_gpt2()) is right
