"""Log-probabilities, loss and settings of preference training."""

import math
from typing import Any

import pytest
import torch

from rlcore.configs import DPOConfig
from rlcore.dpo import PreferenceDataset
from rlcore.dpo.loss import pair_loss, response_sums
from rlcore.errors import ConfigError
from tests.support.letters import PAD, letter_tokenizer
from tests.support.tiny import VOCAB_SIZE, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_qwen2


def test_a_uniform_model_gives_each_response_token_the_log_of_the_vocabulary():
    model = tiny_llama(vocab_size=4, tie_word_embeddings=False)
    model.lm_head.weight.data.zero_()
    tokenizer = letter_tokenizer()
    batch = PreferenceDataset(["a"], ["x"], ["xyz"], tokenizer).batch([0], pad_id=0)
    batch = type(batch)(batch.input_ids % 4, batch.prompt_lengths, batch.response_ids % 4, batch.response_mask)
    # 2 and 4 response tokens, the end token included
    torch.testing.assert_close(response_sums(model, batch), torch.tensor([-2 * math.log(4), -4 * math.log(4)]))


@pytest.mark.parametrize("build", [tiny_llama, tiny_gpt2, tiny_qwen2, tiny_gemma2])
def test_padding_and_prompts_do_not_count(build):
    model = build()
    dataset = PreferenceDataset(["abcd", "c"], ["xyzuvw", "x"], ["x", "xy"], letter_tokenizer())
    batch = dataset.batch([0, 1], pad_id=PAD)
    expected = []
    for side in ("chosen", "rejected"):
        for index in range(2):
            item = dataset[index]
            tokens, start = item[f"{side}_input_ids"], item["prompt_length"]
            logprobs = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
            expected.append(sum(logprobs[t - 1, tokens[t]] for t in range(start, len(tokens))))
    torch.testing.assert_close(response_sums(model, batch), torch.stack(expected), rtol=1e-5, atol=1e-5)
    assert max(map(max, batch.input_ids.tolist())) < VOCAB_SIZE


def test_equal_policy_and_reference_lose_ln_2_and_still_pull_apart():
    model = tiny_llama()
    dataset = PreferenceDataset(["ab", "c"], ["xyz", "x"], ["x", "xy"], letter_tokenizer())
    batch = dataset.batch([0, 1], pad_id=PAD)
    with torch.no_grad():
        reference = response_sums(model, batch)
    loss, sums = pair_loss(model, batch, reference, 2, DPOConfig(model_name="none", beta=0.1))
    torch.testing.assert_close(loss, torch.tensor(math.log(2)), rtol=0, atol=1e-6)
    assert [sums[f"dpo/{name}"].item() for name in ("accuracy", "margin_mean")] == [0.0, 0.0]
    loss.backward()
    found = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    # the gradient is -beta / 2 for each chosen and +beta / 2 for each rejected log-probability, over 2 pairs
    (response_sums(model, batch) * torch.tensor([-0.05, -0.05, 0.05, 0.05]) / 2).sum().backward()
    for gradient, weight in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-6)
    assert max(gradient.abs().max() for gradient in found) > 1e-3


def test_equal_responses_are_no_win_and_give_no_gradient_whatever_rounding_says(monkeypatch: pytest.MonkeyPatch):
    # the first pair is a tie, though its rows come out a bit apart; the second begins as the first does
    batch = PreferenceDataset(["a", "b"], ["xy", "x"], ["xy", "xz"], letter_tokenizer()).batch([0, 1], pad_id=PAD)
    logprobs = torch.tensor([-1.0, -1.0, -1.0000001, -2.0], requires_grad=True)
    monkeypatch.setattr("rlcore.dpo.loss.response_sums", lambda model, batch: logprobs)
    loss, sums = pair_loss(torch.nn.Module(), batch, torch.zeros(4), 2, DPOConfig(model_name="none", beta=1.0))
    loss.backward()
    assert sums["dpo/accuracy"].item() == sums["dpo/margin_mean"].item() == 1.0
    # ln 2 and -log sigmoid(1), over 2
    assert loss.item() == pytest.approx((math.log(2) + 0.313262) / 2, abs=1e-6)
    assert logprobs.grad[[0, 2]].tolist() == [0.0, 0.0]
    assert logprobs.grad[1].item() == -logprobs.grad[3].item() < -0.1


def test_label_smoothing_changes_the_loss_and_not_the_rewards(monkeypatch: pytest.MonkeyPatch):
    # logprobs -10 and -12 against -11 and -11.5: rewards .1 and -.05, h = .15; plain .620957, smoothed .635957
    monkeypatch.setattr("rlcore.dpo.loss.response_sums", lambda model, batch: torch.tensor([-10.0, -12.0]))
    batch = PreferenceDataset(["a"], ["x"], ["y"], letter_tokenizer()).batch([0], pad_id=PAD)
    for smoothing, expected in ((0.0, 0.620957), (0.1, 0.635957)):
        config = DPOConfig(model_name="none", beta=0.1, label_smoothing=smoothing)
        loss, sums = pair_loss(torch.nn.Module(), batch, torch.tensor([-11.0, -11.5]), 1, config)
        assert loss.item() == pytest.approx(expected, abs=1e-6)
        assert sums["dpo/chosen_reward_mean"].item() == pytest.approx(0.1, abs=1e-6)
        assert sums["dpo/rejected_reward_mean"].item() == pytest.approx(-0.05, abs=1e-6)
        assert sums["dpo/margin_mean"].item() == pytest.approx(0.15, abs=1e-6)
        assert sums["dpo/accuracy"].item() == 1.0


def test_settings_have_the_documented_defaults():
    documented = {
        "learning_rate": 1e-6,
        "batch_size": 8,
        "gradient_accumulation_steps": 2,
        "beta": 0.1,
        "label_smoothing": 0.0,
        "reference_free": False,
        "num_epochs": 1,
        "max_grad_norm": 1.0,
        "warmup_ratio": 0.1,
        "max_length": 512,
        "max_prompt_length": 256,
        "eval_every": 100,
        "save_every": 500,
        "device": None,
    }
    assert documented.items() <= DPOConfig(model_name="none").model_dump().items()


@pytest.mark.parametrize(
    "setting",
    [
        {"beta": 0.0},
        {"beta": -1.0},
        {"label_smoothing": 0.51},
        {"label_smoothing": -0.1},
        {"learning_rate": 0.0},
        {"warmup_ratio": 1.1},
        {"batch_size": 0},
        {"max_prompt_length": 512},
        {"unknown": 1},
    ],
)
def test_settings_out_of_range_are_refused(setting: dict[str, Any]):
    with pytest.raises(ConfigError):
        DPOConfig(model_name="none", **setting)
