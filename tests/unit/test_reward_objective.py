"""What a reward model learns from pairs: sums by hand, and dropout that only step and rows decide."""

import math

import pytest
import torch
from torch import Tensor, nn

from rlcore.configs import RewardModelConfig
from rlcore.errors import DataError
from rlcore.formatting import ChatFormat
from rlcore.reward.objective import RewardObjective, pair_sums
from rlcore.reward.pairs import TokenPairs, encode_pairs
from tests.support.letters import END, ids, letter_tokenizer

LN_3 = math.log(3)


class DroppedOut(nn.Module):
    """Rewards are the sums of each row's ids, a half of them dropped while training."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.head.weight)
        self.dropout = nn.Dropout(0.5)

    def scores(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.dropout((input_ids * attention_mask).float()).sum(dim=1, keepdim=True)).squeeze(1)


def objective(**settings: float) -> RewardObjective:
    pairs = TokenPairs([[n, n + 1, n + 2, 1] for n in range(8)], [[2 * n, 3, 1] for n in range(8)])
    return RewardObjective(pairs, 0, RewardModelConfig(model_name="none", **settings))


def test_sums_over_pairs_by_hand():
    # margins ln 3, -ln 3 and 0: losses -ln(3/4), -ln(1/4) and ln 2; one is won and a tie is not
    sums = pair_sums(torch.tensor([LN_3, 1.0, 2.0]), torch.tensor([0.0, 1.0 + LN_3, 2.0]))
    assert sums["reward_model/loss"].item() == pytest.approx(-math.log(3 / 16) + math.log(2), abs=1e-6)
    assert sums["reward_model/accuracy"].item() == 1.0
    assert sums["reward_model/margin_mean"].item() == pytest.approx(0.0, abs=1e-6)
    summary = objective().summary({name: value.item() for name, value in sums.items()}, 3)
    assert summary == pytest.approx(
        {
            "reward_model/loss": (-math.log(3 / 16) + math.log(2)) / 3,
            "reward_model/accuracy": 1 / 3,
            "reward_model/margin_mean": 0.0,
            # two pairs say 3/4 and one of them is right: |1.5 - 1| of 3
            "reward_model/calibration_error": 0.5 / 3,
        },
        abs=1e-6,
    )


def test_the_loss_is_divided_by_the_pairs_of_the_step_and_centred():
    model = DroppedOut().eval()
    # pair 0: 0 + 1 + 2 + 1 = 4 and 0 + 3 + 1 = 4: ln 2, and .1 * (4 + 4)^2 = 6.4, over 5 pairs
    loss, sums = objective(center_rewards_coef=0.1).loss(model, [0], pair_count=5, step=0)
    assert loss.item() == pytest.approx((math.log(2) + 6.4) / 5, abs=1e-6)
    # what is reported is the preference loss alone
    assert sums["reward_model/loss"].item() == pytest.approx(math.log(2), abs=1e-6)
    loss.backward()
    # d/dw of .1 * (8 w)^2 / 5 = 2.56; the margin does not depend on w
    assert model.head.weight.grad.item() == pytest.approx(2.56, abs=1e-5)


def test_equal_rows_are_a_tie_whatever_dropout_says():
    # of pair 1, the chosen and the rejected row are the same tokens
    pairs = TokenPairs([[3, 4, 5, 1], [6, 7, 8, 9]], [[3, 4, 6, 1], [6, 7, 8, 9]])
    model = DroppedOut().train()
    loss, sums = RewardObjective(pairs, 0, RewardModelConfig(model_name="none")).loss(model, [1], pair_count=1, step=0)
    loss.backward()
    assert (sums["reward_model/accuracy"].item(), sums["reward_model/margin_mean"].item()) == (0.0, 0.0)
    assert (loss.item(), model.head.weight.grad.item()) == (pytest.approx(math.log(2), abs=1e-6), 0.0)
    # the pair that differs has a margin: of the masks of this step
    assert objective_margin(pairs, [0]) != 0.0


def objective_margin(pairs: TokenPairs, rows: list[int]) -> float:
    _, sums = RewardObjective(pairs, 0, RewardModelConfig(model_name="none")).loss(
        DroppedOut().train(), rows, pair_count=1, step=0
    )
    return sums["reward_model/margin_mean"].item()


def test_step_and_rows_decide_what_is_dropped_and_nothing_else():
    model = DroppedOut().train()

    alike = TokenPairs([[3, 4, 5, 6, 7, 8, 1]] * 8, [[2, 9, 3, 5, 1]] * 8)

    def margins(rows: list[int], step: int, seed: int = 0) -> float:
        config = RewardModelConfig(model_name="none", seed=seed)
        _, sums = RewardObjective(alike, 0, config).loss(model, rows, pair_count=1, step=step)
        return sums["reward_model/margin_mean"].item()

    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first = margins([3, 4, 5], 7)
    # the caller's own random numbers go on as if nothing had been drawn
    assert torch.rand(1) == expected
    assert margins([3, 4, 5], 7) == first
    # all pairs are alike, so the masks alone differ: of another step, another micro-batch, another seed
    others = [margins([3, 4, 5], 8), margins([6, 7, 0], 7), margins([3, 4, 5], 7, seed=1)]
    assert len({first, *others}) == 4


def test_columns_become_token_rows_with_one_end():
    columns = {"prompt": ["ab", "c"], "chosen": ["x", ""], "rejected": ["yz", "x"]}
    pairs = encode_pairs(ChatFormat(letter_tokenizer()), columns, 8)
    # an empty response is one to be scored: the end token alone
    assert pairs.chosen == [[*ids("abx"), END], [*ids("c"), END]]
    assert pairs.rejected == [[*ids("abyz"), END], [*ids("cx"), END]]
    assert [pairs.length(row) for row in range(2)] == [5, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rejected": ["x"]}, "2 prompts, 2 chosen and 1 rejected"),
        ({"prompt": ["ab", " "]}, "Row 1, prompt: found ' '"),
        ({"chosen": ["x", None]}, "Row 1: Found"),
    ],
)
def test_pairs_of_the_wrong_form_are_named(change, message):
    columns = {"prompt": ["ab", "c"], "chosen": ["x", "y"], "rejected": ["yz", "x"]}
    with pytest.raises(DataError, match=message):
        encode_pairs(ChatFormat(letter_tokenizer()), columns | change, 8)
