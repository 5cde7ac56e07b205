"""The distribution that a token is drawn from: temperature, top-k, top-p."""

import math

import pytest
import torch

from rlcore.errors import ConfigError
from rlcore.functional import filtering
from rlcore.functional.filtering import filter_probabilities

LOGITS = torch.tensor([[0.45, 0.3, 0.15, 0.1]]).log()


def filtered(logits=LOGITS, temperature=1.0, top_k=0, top_p=1.0):
    return filter_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.45, 0.3, 0.15, 0.1]),
        ({"top_p": 0.8}, [0.5, 1 / 3, 1 / 6, 0]),  # 0.75 is not enough: the token that crosses 0.8 stays
        ({"top_p": 0}, [1, 0, 0, 0]),
        ({"top_p": 1e-6}, [1, 0, 0, 0]),
        ({"top_k": 1}, [1, 0, 0, 0]),
        ({"top_k": 2}, [0.6, 0.4, 0, 0]),
        ({"top_k": 4}, [0.45, 0.3, 0.15, 0.1]),
        ({"top_k": 99}, [0.45, 0.3, 0.15, 0.1]),
        ({"top_k": 3, "top_p": 0.8}, [0.6, 0.4, 0, 0]),  # of three tokens 0.45 / 0.9 + 0.3 / 0.9 = 0.833 is enough
        ({"temperature": 0.5, "top_k": 2}, [0.2025 / 0.2925, 0.09 / 0.2925, 0, 0]),  # squares, renormalised
    ],
)
def test_kept_tokens_are_renormalised(settings, expected):
    torch.testing.assert_close(filtered(**settings), torch.tensor([expected], dtype=torch.float32))


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-38])
def test_a_temperature_at_or_near_zero_is_greedy(temperature):
    # 20 / 1e-38 overflows float32; the difference to the maximum is 0 at any temperature.
    assert filtered(torch.tensor([[10.0, 20.0, 15.0]]), temperature=temperature).tolist() == [[0, 1, 0]]


def test_rows_do_not_mix():
    logits = torch.cat([LOGITS, LOGITS.flip(-1)])
    found = filtered(logits, top_p=0.8)
    torch.testing.assert_close(found[1], found[0].flip(-1))


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.99}, {"temperature": 0}, {}])
def test_a_banned_token_never_comes_back(settings):
    found = filtered(torch.tensor([[-math.inf, -0.3, -math.inf, 0.9]]), **settings)
    assert found[0, 0] == found[0, 2] == 0
    assert found.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999999])
def test_a_nucleus_of_any_size_equals_that_of_a_full_sort(top_p, monkeypatch):
    # Start with two candidates, so that flat rows need several rounds and the last one all tokens.
    monkeypatch.setattr(filtering, "NUCLEUS_START", 2)
    noise = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    logits = noise * torch.linspace(0.1, 8, 8).unsqueeze(1)
    ordered, ids = logits.softmax(-1).sort(descending=True)
    kept = torch.where(ordered.cumsum(-1) - ordered < top_p, ordered, 0.0)
    expected = torch.zeros_like(logits).scatter(1, ids, kept / kept.sum(-1, keepdim=True))
    torch.testing.assert_close(filtered(logits, top_p=top_p), expected)


def test_half_precision_logits_give_float32_probabilities():
    assert filtered(LOGITS.bfloat16(), top_p=0.9).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -0.1), ("temperature", math.nan), ("top_k", -1), ("top_p", 1.01), ("top_p", -0.5)],
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        filtered(**{name: value})
