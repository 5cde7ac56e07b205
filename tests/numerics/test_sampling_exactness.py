"""Sampling against independent figures: the model's own generation, teacher forcing, exact probabilities."""

import numpy as np
import pytest
import torch
from torch import nn

from rlcore.batches import Sequences, join, left_pad
from rlcore.configs import LoraConfig
from rlcore.models import PPOModel, add_lora, evaluation_mode, load_causal_lm, reference_of
from rlcore.sampling import Samples, SamplingParams, generate
from rlcore.sampling.decoding import RecomputingDecoding, decoding_for
from rlcore.sampling.tokens import sample_tokens
from tests.support.tiny import END_ID, PAD_ID, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_qwen2

FAMILIES = [tiny_llama, tiny_gpt2, tiny_qwen2, tiny_gemma2]
LENGTHS = (5, 1, 8, 3, 3, 2, 7, 4, 6)


def ragged_prompts(first_id: int = 4, vocab_size: int = 48) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(first_id, vocab_size, (length,), generator=generator).tolist() for length in LENGTHS]


def sample(policy: PPOModel, prompts, params: SamplingParams, end_ids=(END_ID,)):
    return generate(
        policy.base_model,
        prompts,
        params,
        seeds=range(len(prompts)),
        end_ids=end_ids,
        pad_id=PAD_ID,
        value_head=policy.value_head,
    )


def joined(prompts: list[list[int]], samples: Samples) -> Sequences:
    return join(prompts, samples.response_lists(), PAD_ID)


def critic(model) -> PPOModel:
    policy = PPOModel(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        nn.init.normal_(policy.value_head.output.weight)
    return policy.to(model.dtype)


def assert_greedy_equals_own_generation(model, prompts, new: int, end_id: int):
    ids, mask = left_pad(prompts, PAD_ID)
    settings = {"max_new_tokens": new, "do_sample": False, "eos_token_id": end_id, "pad_token_id": PAD_ID}
    expected = model.generate(ids, attention_mask=mask, **settings)[:, ids.shape[1] :]
    samples = generate(
        model, prompts, SamplingParams(new, temperature=0), seeds=[0] * len(prompts), end_ids=[end_id], pad_id=PAD_ID
    )
    assert torch.equal(samples.response_ids, expected)


@pytest.mark.parametrize("make", FAMILIES)
def test_greedy_equals_the_models_own_generation_token_by_token(make):
    model = make()
    assert_greedy_equals_own_generation(model, ragged_prompts(), new=20, end_id=END_ID)
    assert decoding_for(model) is not RecomputingDecoding


def test_greedy_equals_the_own_generation_of_a_trained_model(shared):
    model = load_causal_lm(shared / "models" / "stories260K")
    prompts = [[1, *prompt] for prompt in ragged_prompts(first_id=3, vocab_size=512)]
    assert_greedy_equals_own_generation(model, prompts, new=64, end_id=1)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}, {"temperature": 1.5}])
@pytest.mark.parametrize("make", FAMILIES)
def test_logprobs_and_values_while_sampling_equal_those_of_teacher_forcing(make, settings):
    policy = critic(make())
    params = SamplingParams(20, **settings)
    samples = sample(policy, ragged_prompts(), params)
    with torch.no_grad():
        outputs = policy.response_outputs(joined(ragged_prompts(), samples), params.temperature)
    # float32 of two ways through the model; weights are large, so logits reach 10
    torch.testing.assert_close(samples.logprobs, outputs.logprobs, rtol=0, atol=1e-5)
    torch.testing.assert_close(samples.values, outputs.values, rtol=0, atol=1e-5)


def test_adapters_sample_from_the_adapted_model():
    base = tiny_llama()
    policy = critic(add_lora(base, LoraConfig(rank=2, alpha=4)))
    with torch.no_grad():
        for name, weight in policy.base_model.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.3)
    samples = sample(policy, ragged_prompts(), SamplingParams(20))
    sequences = joined(ragged_prompts(), samples)
    with torch.no_grad():
        adapted = policy.response_outputs(sequences, 1.0).logprobs
        with reference_of(policy):
            reference = policy.response_outputs(sequences, 1.0).logprobs
    torch.testing.assert_close(samples.logprobs, adapted, rtol=0, atol=1e-5)
    assert (samples.logprobs - reference).abs().max() > 0.1


def test_logprobs_of_a_trained_model_are_exact_in_float64(shared):
    policy = critic(load_causal_lm(shared / "models" / "stories260K", dtype=torch.float64))
    prompts = [[1, *prompt] for prompt in ragged_prompts(first_id=3, vocab_size=512)]
    samples = sample(policy, prompts, SamplingParams(64), end_ids=[1])
    with torch.no_grad():
        outputs = policy.response_outputs(joined(prompts, samples), 1.0)
    # samples are stored in float32, whose spacing below 16 is 1e-6
    torch.testing.assert_close(samples.logprobs.double(), outputs.logprobs, rtol=0, atol=1e-6)


def test_ratio_is_one_before_the_first_update_although_the_model_has_dropout():
    policy = critic(tiny_gpt2(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1).double()).train()
    samples = sample(policy, ragged_prompts(), SamplingParams(20, temperature=0.7))
    sequences = joined(ragged_prompts(), samples)
    assert policy.training
    with torch.no_grad(), evaluation_mode(policy):
        logprobs = policy.response_outputs(sequences, 0.7).logprobs
    ratio = (logprobs - samples.logprobs)[sequences.response_mask].exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-6)
    with torch.no_grad():
        dropped = policy.response_outputs(sequences, 0.7).logprobs
    assert (dropped - samples.logprobs).abs().max() > 0.01


@pytest.mark.parametrize("make", FAMILIES)
def test_a_ragged_batch_equals_its_rows_alone(make):
    policy, prompts = critic(make()), ragged_prompts()
    params = SamplingParams(20, temperature=0.8)
    together = sample(policy, prompts, params)
    for row, prompt in enumerate(prompts):
        alone = generate(
            policy.base_model, [prompt], params, seeds=[row], end_ids=[END_ID], pad_id=PAD_ID,
            value_head=policy.value_head,
        )  # fmt: skip
        mask = together.response_mask[row]
        assert together.response_ids[row][mask].tolist() == alone.response_ids[0].tolist()
        torch.testing.assert_close(together.logprobs[row][mask], alone.logprobs[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(together.values[row][mask], alone.values[0], rtol=0, atol=1e-5)


# Probabilities .45, .3, .15, .08, .02 at temperature 1, in the order of ids 2, 0, 4, 1, 3.
PROBABILITIES = np.array([0.3, 0.08, 0.45, 0.02, 0.15])


@pytest.mark.parametrize(
    ("settings", "exact"),
    [
        ({}, PROBABILITIES),
        # squares: .09, .0064, .2025, .0004, .0225 over .3218
        ({"temperature": 0.5}, np.array([0.09, 0.0064, 0.2025, 0.0004, 0.0225]) / 0.3218),
        ({"top_k": 3}, np.array([0.3, 0, 0.45, 0, 0.15]) / 0.9),
        # .45 + .3 = .75 < .8, so the token of .15 crosses and stays
        ({"top_p": 0.8}, np.array([0.3, 0, 0.45, 0, 0.15]) / 0.9),
        # of the best two, .6 and .4 after renormalising, .6 reaches .55
        ({"top_k": 2, "top_p": 0.55}, np.array([0, 0, 1, 0, 0])),
    ],
)
def test_frequencies_are_those_of_the_exact_distribution(settings, exact):
    count = 40_000
    logits = torch.tensor(PROBABILITIES, dtype=torch.float32).log().expand(count, -1)
    uniforms = torch.rand(count, generator=torch.Generator().manual_seed(0))
    tokens, _ = sample_tokens(logits, uniforms, SamplingParams(1, **settings))
    observed = np.bincount(tokens.numpy(), minlength=5)
    possible = exact > 0
    assert (observed[~possible] == 0).all()
    expected = exact[possible] * count
    # 0.999 quantile of chi-square with 4 degrees of freedom; fewer degrees have a smaller one
    assert ((observed[possible] - expected) ** 2 / expected).sum() < 18.47


def test_first_tokens_follow_the_models_own_distribution():
    model, count = tiny_llama(), 4000
    params = SamplingParams(1, temperature=0.8)
    tokens = generate(model, [[5, 6, 7]] * count, params, seeds=range(count), end_ids=[], pad_id=PAD_ID).response_ids
    with torch.no_grad():
        exact = (model(torch.tensor([[5, 6, 7]])).logits[0, -1].double() / 0.8).softmax(-1).numpy()
    observed = np.bincount(tokens[:, 0].numpy(), minlength=48)
    # cells of fewer than 5 expected are pooled, as the chi-square approximation asks for
    rare = exact * count < 5
    expected = np.append(exact[~rare], exact[rare].sum()) * count
    observed = np.append(observed[~rare], observed[rare].sum())
    statistic = ((observed - expected) ** 2 / expected).sum()
    # at most 47 degrees of freedom: 0.999 quantile 82.7
    assert len(expected) > 10
    assert statistic < 82.7
