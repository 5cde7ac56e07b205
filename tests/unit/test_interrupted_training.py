"""A trainer that was interrupted inside an iteration goes on from a checkpoint alone."""

import pytest

from rlcore.errors import DataError, RLCoreError
from tests.support.ppo import PROMPTS, mean_letter, running, same, share_of_e, tiny_config, weights_of

INTERRUPTED = "interrupted inside iteration 2, expected the weights of a whole iteration"


def interrupt(trainer, monkeypatch, call: int) -> None:
    """Let one of the optimiser steps end as Ctrl-C would. Each iteration has four."""
    step, calls = trainer.training_client.train_step, []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return step(*arguments, **options)

    monkeypatch.setattr(trainer.training_client, "train_step", interrupted)


def test_between_two_iterations_nothing_is_trained_or_saved(tmp_path, monkeypatch):
    config = tiny_config(num_iterations=3)
    with running(config, reward_fn=mean_letter) as (whole, _):
        whole.train(PROMPTS)
        expected = weights_of(whole)
    with running(config, reward_fn=mean_letter) as (trainer, _):
        # the third of the four steps of the second iteration
        interrupt(trainer, monkeypatch, 7)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(PROMPTS, resume_dir=tmp_path)
        for refused in (
            lambda: trainer.save_checkpoint(tmp_path / "other"),
            lambda: trainer.train(PROMPTS),
            lambda: trainer.train(PROMPTS, resume_dir=tmp_path / "other"),
        ):
            with pytest.raises(RLCoreError, match=INTERRUPTED):
                refused()
        assert not list((tmp_path / "other").glob("step-*"))
        # what needs no whole iteration still works
        assert len(trainer.generate_responses(PROMPTS[:2])) == 2
        trainer.train(PROMPTS, resume_dir=tmp_path)
        assert same(weights_of(trainer), expected)


def test_a_loaded_checkpoint_makes_the_trainer_whole(tmp_path, monkeypatch):
    with running(tiny_config(num_iterations=3)) as (trainer, _):
        trainer.train(PROMPTS, 1)
        checkpoint = trainer.save_checkpoint(tmp_path)
        before = weights_of(trainer)
        interrupt(trainer, monkeypatch, 2)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(PROMPTS)
        assert not same(weights_of(trainer), before)
        trainer.load_checkpoint(checkpoint)
        assert same(weights_of(trainer), before)
        assert len(trainer.train(PROMPTS)["rewards"]) == 2
        trainer.save_checkpoint(tmp_path)


def test_an_error_before_the_weights_move_leaves_a_whole_trainer(tmp_path):
    asked = []

    def fails_once(prompts, responses):
        asked.append(1)
        return None if len(asked) == 2 else share_of_e(prompts, responses)

    config = tiny_config(num_iterations=3)
    with running(config) as (whole, _):
        whole.train(PROMPTS)
        expected = weights_of(whole)
    with running(config, reward_fn=fails_once) as (trainer, _):
        with pytest.raises(DataError, match="fails_once returned None"):
            trainer.train(PROMPTS)
        assert trainer.save_checkpoint(tmp_path).name == "step-1"
        trainer.train(PROMPTS)
        assert same(weights_of(trainer), expected)


def test_an_iteration_ends_with_its_validation(tmp_path):
    asked = []

    def fails_once(prompts, responses):
        asked.append(1)
        # the validation of the start, two iterations, and the validation behind them
        return None if len(asked) == 4 else share_of_e(prompts, responses)

    with running(tiny_config(num_iterations=2), reward_fn=fails_once) as (trainer, _):
        with pytest.raises(DataError, match="fails_once returned None"):
            trainer.train(PROMPTS, validation_prompts=PROMPTS[:4])
        with pytest.raises(RLCoreError, match=INTERRUPTED):
            trainer.save_checkpoint(tmp_path)
