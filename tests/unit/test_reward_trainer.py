"""The reward trainer takes the steps it should, learns, and says how well; what does not fit changes nothing."""

import copy
import math

import pytest
import torch

from rlcore.errors import ConfigError, DataError, RLCoreError, TrainingDiverged
from rlcore.functional.losses import bradley_terry_loss
from rlcore.reward import MultiObjectiveRewardModel, PairwiseRewardModel, RewardModel, RewardModelTrainer
from rlcore.schedule import learning_rate_share
from rlcore.streams import permutation
from tests.support.reward import body, config, reward_model, tokenizer
from tests.support.tiny import tiny_llama

CHOSEN = [f"The answer is {number}." for number in range(5)]
REJECTED = [f"It is maybe {number} or so, who knows?" for number in range(5)]
QUIET = {"dropout_prob": 0.0, "warmup_steps": 0, "logging_steps": 1}


def trainer(model: RewardModel | None = None, **settings) -> RewardModelTrainer:
    settings = QUIET | settings
    model = RewardModel(config(**settings), body()) if model is None else model
    return RewardModelTrainer(model, tokenizer(), config(**settings), device="cpu")


def state(model: RewardModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def changed(model: RewardModel, before: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("model_class", [RewardModel, PairwiseRewardModel])
def test_it_learns_to_tell_the_texts_apart(model_class):
    reports = []
    model = model_class(config(), body())
    own = RewardModelTrainer(
        model,
        tokenizer(),
        config(learning_rate=1e-2, warmup_steps=2),
        "cpu",
        on_metrics=lambda *row: reports.append(row),
    )
    history = own.train_on_preferences(CHOSEN, REJECTED, num_epochs=8, batch_size=5)
    # rewards begin near 0, where a pair costs ln 2 and dropout decides who is right
    assert history["loss"][0] == pytest.approx(math.log(2), abs=0.2)
    assert history["loss"][-1] < 0.2
    assert history["accuracy"][-1] == 1.0
    assert history["margin"][-1] > 1.0
    measures = own.evaluate(CHOSEN, REJECTED)
    assert measures["eval_accuracy"] == 1.0
    # always right, so what is missing to a confidence of 1 is the calibration error
    probabilities = torch.tensor(model.predict_rewards(CHOSEN, tokenizer())) - torch.tensor(
        model.predict_rewards(REJECTED, tokenizer())
    )
    assert measures["eval_calibration_error"] == pytest.approx(1 - probabilities.sigmoid().mean().item(), abs=1e-5)
    assert reports[0] == (0, {"progress/total_steps": 8.0})


def by_hand(model: RewardModel, own: RewardModelTrainer, epochs: int, batch_size: int) -> list[float]:
    """The same training as a plain loop over whole steps, the losses of its steps."""
    settings = own.config
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=settings.weight_decay)
    rows = [own._encoded("chosen", CHOSEN), own._encoded("rejected", REJECTED)]
    per_step = batch_size * settings.gradient_accumulation_steps
    steps_per_epoch = math.ceil(len(CHOSEN) / per_step)
    losses = []
    for epoch in range(epochs):
        order = permutation(len(CHOSEN), settings.seed, "pairs", epoch)
        for start in range(0, len(order), per_step):
            share = learning_rate_share(len(losses), settings.warmup_steps, steps_per_epoch * epochs)
            optimizer.param_groups[0]["lr"] = settings.learning_rate * share
            sides = []
            for side in rows:
                scores = [
                    model.scores(torch.tensor([side[row]]), torch.ones(1, len(side[row])))
                    for row in order[start : start + per_step]
                ]
                sides.append(torch.cat(scores))
            loss = bradley_terry_loss(*sides)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_its_steps_are_those_of_a_plain_loop(accumulation):
    # 5 pairs in batches of 2: with 2 batches a step there is a step of 4 pairs and one of 1; with 4 a single one of 5
    own = trainer(learning_rate=1e-3, warmup_steps=2, gradient_accumulation_steps=accumulation, weight_decay=0.1)
    twin = copy.deepcopy(own.model).train()
    losses = own.train_on_preferences(CHOSEN, REJECTED, num_epochs=2, batch_size=2)["loss"]
    assert len(losses) == 2 * math.ceil(5 / (2 * accumulation))
    assert losses == pytest.approx(by_hand(twin, own, epochs=2, batch_size=2), abs=1e-5)
    for name, tensor in own.model.state_dict().items():
        torch.testing.assert_close(tensor, twin.state_dict()[name], rtol=0, atol=1e-5, msg=name)


def test_each_epoch_visits_every_pair_once_in_an_order_of_its_own():
    own, seen = trainer(), []
    own.model.register_forward_pre_hook(lambda _model, inputs: seen.append(inputs[0][0].tolist()))
    own.train_on_preferences(CHOSEN, REJECTED, num_epochs=3, batch_size=1)
    epochs = [seen[start : start + 5] for start in (0, 5, 10)]
    assert len(seen) == 15
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_the_learning_rate_warms_up_and_falls():
    reports = []
    settings = config(**QUIET | {"warmup_steps": 2, "learning_rate": 0.5, "max_grad_norm": 1e-3})
    own = RewardModelTrainer(reward_model(), tokenizer(), settings, "cpu", on_metrics=lambda *row: reports.append(row))
    own.train_on_preferences(CHOSEN[:1], REJECTED[:1], num_epochs=4)
    rates = [metrics["optim/learning_rate"] for step, metrics in reports if step]
    # half, whole, then a cosine over the 2 steps that are left: 1 and (1 + cos(pi / 2)) / 2
    assert rates == pytest.approx([0.25, 0.5, 0.5, 0.25])


def test_no_epoch_trains_nothing():
    own = trainer()
    before = state(own.model)
    history = own.train_on_preferences(CHOSEN, REJECTED, num_epochs=0)
    assert history == {"loss": [], "accuracy": [], "margin": [], "calibration_error": []}
    assert not changed(own.model, before)


def test_held_out_pairs_are_measured_after_each_epoch():
    own = trainer(learning_rate=1e-3)
    history = own.train_on_preferences(
        CHOSEN[:3], REJECTED[:3], 2, 3, eval_chosen_texts=CHOSEN[3:], eval_rejected_texts=REJECTED[3:]
    )
    assert {name: len(values) for name, values in history.items() if name.startswith("eval_")} == {
        "eval_loss": 2, "eval_accuracy": 2, "eval_margin": 2, "eval_calibration_error": 2
    }  # fmt: skip
    measures = own.evaluate(CHOSEN[3:], REJECTED[3:])
    assert {name: values[-1] for name, values in history.items() if name in measures} == pytest.approx(measures)
    predicted = [own.model.predict_rewards(texts, tokenizer()) for texts in (CHOSEN[3:], REJECTED[3:])]
    margins = torch.tensor(predicted[0]) - torch.tensor(predicted[1])
    assert measures["eval_margin"] == pytest.approx(margins.mean().item(), abs=1e-6)
    assert measures["eval_loss"] == pytest.approx(-torch.nn.functional.logsigmoid(margins).mean().item(), abs=1e-6)
    assert measures["eval_accuracy"] == (margins > 0).float().mean().item()


def test_prompts_are_shared_by_both_sides():
    own = trainer()
    pairs = own._pairs(CHOSEN[:1], REJECTED[:1], ["What is 2 plus 3?"])
    chat = own.chat
    for row, response in ((pairs.pairs.chosen[0], CHOSEN[0]), (pairs.pairs.rejected[0], REJECTED[0])):
        assert row == sum(chat.encode_pair("What is 2 plus 3?", response, max_length=48), [])
    history = own.train_on_preferences(
        CHOSEN, REJECTED, 1, prompts=["Hi"] * 5, eval_chosen_texts=CHOSEN, eval_rejected_texts=REJECTED,
        eval_prompts=["Hi"] * 5,
    )  # fmt: skip
    assert own.evaluate(CHOSEN, REJECTED, prompts=["Hi"] * 5)["eval_loss"] == pytest.approx(history["eval_loss"][-1])
    assert own.evaluate(CHOSEN, REJECTED)["eval_loss"] != pytest.approx(history["eval_loss"][-1], abs=1e-5)


def test_dropout_trains_but_never_measures_and_every_mode_comes_back():
    model = RewardModel(config(dropout_prob=0.5), tiny_llama(vocab_size=300))
    model.eval().body.norm.train()
    modes = [module.training for module in model.modules()]
    own = trainer(model, learning_rate=1e-9)
    assert own.evaluate(CHOSEN, REJECTED) == own.evaluate(CHOSEN, REJECTED)
    first, again = (own.train_on_preferences(CHOSEN, REJECTED, 1)["loss"] for _ in range(2))
    assert first == pytest.approx(again, abs=1e-6)  # the seed draws the dropout
    assert first != pytest.approx([own.evaluate(CHOSEN, REJECTED)["eval_loss"]], abs=1e-4)
    assert [module.training for module in model.modules()] == modes


def test_it_trains_again_until_it_is_closed():
    own = trainer(learning_rate=1e-3)
    first, second = (own.train_on_preferences(CHOSEN, REJECTED, 2, 5)["loss"] for _ in range(2))
    assert second[0] < first[0]
    own.close()
    own.close()
    with pytest.raises(RLCoreError, match="shutdown"):
        own.train_on_preferences(CHOSEN, REJECTED)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"chosen_texts": CHOSEN[:4], "rejected_texts": REJECTED[:1]}, DataError, "4 chosen_texts, 1 rejected_texts"),
        ({"chosen_texts": CHOSEN, "rejected_texts": REJECTED[:3]}, DataError, "5 chosen_texts, 3 rejected_texts"),
        ({"chosen_texts": [], "rejected_texts": []}, DataError, "0 chosen_texts, 0 rejected_texts"),
        ({"prompts": ["Hi"]}, DataError, "1 prompts, 5 chosen_texts"),
        ({"eval_chosen_texts": CHOSEN}, DataError, "5 eval_chosen_texts, 0 eval_rejected_texts"),
        ({"eval_chosen_texts": [], "eval_rejected_texts": []}, DataError, "0 eval_chosen_texts"),
        (
            {"prompts": ["Hi"] * 5, "eval_chosen_texts": CHOSEN, "eval_rejected_texts": REJECTED},
            DataError,
            "Pass prompts and eval_prompts",
        ),
        ({"chosen_texts": "Hello"}, DataError, "chosen_texts: found the text 'Hello'"),
        ({"chosen_texts": [*CHOSEN[:4], None]}, DataError, "chosen_texts, row 4: found None"),
        ({"rejected_texts": [*REJECTED[:4], " "]}, DataError, "rejected_texts, row 4: found ' '"),
        ({"num_epochs": -1}, ConfigError, "num_epochs=-1"),
        ({"batch_size": 0}, ConfigError, "batch_size=0"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_trained(arguments, error, match):
    own = trainer()
    before = state(own.model)
    with pytest.raises(error, match=match):
        own.train_on_preferences(**{"chosen_texts": CHOSEN, "rejected_texts": REJECTED} | arguments)
    assert not changed(own.model, before)


def test_another_models_tokenizer_is_refused():
    own = trainer(RewardModel(config(), tiny_llama()))  # knows 48 tokens
    with pytest.raises(DataError, match="but the model knows 48. Use the tokenizer of the model"):
        own.train_on_preferences(CHOSEN, REJECTED)


def test_padding_is_known_to_tokenizer_and_model_before_anything_is_trained():
    model = RewardModel(config(), tiny_llama(vocab_size=300, pad_token_id=None))
    without = copy.deepcopy(tokenizer())
    without.pad_token = None
    with pytest.raises(ConfigError, match="no padding token"):
        RewardModelTrainer(model, without, config(), "cpu")
    without.pad_token = without.eos_token
    own = RewardModelTrainer(model, without, config(), "cpu")
    assert model.body.config.pad_token_id == without.eos_token_id
    assert model.body.get_input_embeddings().num_embeddings == 300
    one_by_one, together = (model.predict_rewards(CHOSEN, without, batch_size=size) for size in (1, 5))
    assert together == pytest.approx(one_by_one, abs=1e-5)
    assert len(own.train_on_preferences(CHOSEN, REJECTED, 1, 2)["loss"]) == 3


def test_three_bad_steps_in_a_row_end_the_training():
    own = trainer()
    with torch.no_grad():
        own.model.head.weight[0, 0] = math.nan
    before = state(own.model)
    with pytest.raises(TrainingDiverged, match="3 optimiser steps in a row"):
        own.train_on_preferences(CHOSEN, REJECTED, num_epochs=5)
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in own.model.state_dict().items() if name != "head.weight"
    )


def test_three_outputs_have_no_preference():
    own = trainer(reward_model(num_labels=3))
    with pytest.raises(ConfigError, match="a scalar reward needs num_labels=1"):
        own.train_on_preferences(CHOSEN, REJECTED)


def multi(weights=None) -> RewardModelTrainer:
    return trainer(MultiObjectiveRewardModel(config(**QUIET), 2, weights, body()), learning_rate=1e-2)


def test_it_learns_several_objectives_from_labels():
    own = multi([1.0, 1.0])
    texts, targets = CHOSEN + REJECTED, [[1.0, -2.0]] * 5 + [[-1.0, None]] * 4 + [[None, 2.0]]
    history = own.train_on_labels(texts, targets, 12, 5, eval_texts=texts, eval_targets=targets)
    assert sorted(history) == sorted(
        f"{prefix}{name}" for prefix in ("", "eval_") for name in ("loss", "objective_0_loss", "objective_1_loss")
    )
    assert [len(history["loss"]), len(history["eval_loss"])] == [24, 12]
    assert history["eval_loss"][-1] < 0.1 < 1.0 < history["loss"][0]
    # the last evaluation by hand: the mean over the labels that there are
    rewards = torch.tensor(own.model.predict_objectives(texts, tokenizer()))
    tensor = torch.tensor([[math.nan if entry is None else entry for entry in row] for row in targets])
    errors = (rewards - tensor).square()
    for index in range(2):
        assert history[f"eval_objective_{index}_loss"][-1] == pytest.approx(errors[:, index].nanmean().item(), abs=1e-5)
    parts = [history[f"eval_objective_{index}_loss"][-1] for index in range(2)]
    assert history["eval_loss"][-1] == pytest.approx(sum(parts), abs=1e-6)


def test_labels_of_prompts_and_responses():
    own = multi()
    texts = [("What is 2 plus 3?", "5"), ("Hi", "maybe")]
    assert len(own.train_on_labels(texts, torch.zeros(2, 2), 1)["loss"]) == 1
    with pytest.raises(DataError, match=r"texts, row 1: found \('Hi', ''\)"):
        own.train_on_labels([texts[0], ("Hi", "")], torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("targets", "match"),
    [
        ([[0.0, 1.0]], "2 texts, 1 targets"),
        ([[0.0], [1.0]], r"shape \[2, 1\], expected \[2, 2\]"),
        ([[0.0, 1.0], [1.0]], "targets: "),
        ([[0.0, "a"], [1.0, 1.0]], "targets: "),
        ([[0.0, None], [1.0, None]], r"targets: found no label for the objectives \[1\]"),
        ([[0.0, math.inf], [1.0, 1.0]], "infinite target"),
        ([0.0, 1.0], r"shape \[2\], expected \[2, 2\]"),
    ],
)
def test_labels_that_do_not_fit_are_refused(targets, match):
    own = multi()
    before = state(own.model)
    with pytest.raises(DataError, match=match):
        own.train_on_labels(CHOSEN[:2], targets)
    assert not changed(own.model, before)


def test_each_kind_of_model_has_its_own_kind_of_data():
    with pytest.raises(ConfigError, match=r"Use train_on_labels\(\)"):
        multi().train_on_preferences(CHOSEN, REJECTED)
    with pytest.raises(ConfigError, match=r"Use train_on_labels\(\)"):
        multi().evaluate(CHOSEN, REJECTED)
    with pytest.raises(ConfigError, match="Found a RewardModel, expected a MultiObjectiveRewardModel"):
        trainer().train_on_labels(CHOSEN, [[1.0]] * 5)
