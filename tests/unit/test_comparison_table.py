"""The table of a comparison: means over all seeds, intervals by prompt group, and which arm has seen the checker."""

import pytest

from rlcore.errors import ConfigError
from tasks.records.parameters import resolve
from tasks.running.comparison_table import Arm, Measured, arms_of, markdown, table_of
from tests.support.checkout import ROOT

PPO, DPO = Arm("ppo", "ppo"), Arm("dpo", "dpo")
VERIFIED = Arm("grpo + verifier", "grpo", "tasks.demos.arithmetic:gold")


def answers(policy: tuple[float, ...], sft: tuple[float, ...] = (0.0, 0.0, 1.0, 0.0)) -> list[dict]:
    """Two answers to each prompt of the groups a and b."""
    return [
        {
            "model": model,
            "prompt": group,
            "response": "x",
            "group": group,
            "gold": gold,
            "kl/ref_sequence_mean": 2 * gold,
        }
        for model, values in (("sft", sft), ("policy", policy))
        for group, gold in zip("aabb", values, strict=True)
    ]


def measured(arm: Arm, seed: int, policy: tuple[float, ...], seconds: float | None = 30.0) -> Measured:
    return Measured(arm, seed, answers(policy), seconds, passed=sum(policy) > 2)


def arms(*sets: str) -> list[tuple[str, str, str | None]]:
    parameters = resolve(ROOT / "params.yaml", None, sets).parameters
    return [(arm.name, arm.algorithm, arm.reward_function) for arm in arms_of(parameters)]


FOUR = [(name, name, None) for name in ("ppo", "grpo", "dpo", "orpo")]


def test_the_compared_arms_learn_from_the_reward_model_and_the_verifier_is_the_checker():
    assert arms() == [*FOUR, ("grpo + verifier", "grpo", "tasks.demos.arithmetic:gold")]
    other = f"{__name__}:other_names"
    assert arms(f"reward_function={other}") == [*FOUR, ("grpo + verifier", "grpo", other)]
    assert arms("evaluate.gold=null") == FOUR


def other_names(prompt_row, text, ended):
    """A checker that cannot be told from a reward function of another form."""
    return {"gold": 1.0}


def test_a_checker_with_other_parameters_is_no_verifier():
    assert arms(f"evaluate.gold={__name__}:other_names") == FOUR


@pytest.mark.parametrize("setting", ["reward_function", "evaluate.gold"])
def test_a_verifier_that_is_no_function_is_refused_before_anything_is_trained(setting):
    with pytest.raises(ConfigError, match=f"{setting}: .*nowhere"):
        arms(f"{setting}=nowhere:gold")


def test_an_arm_sets_all_that_it_may_differ_in():
    # Whatever the arm before it left in params.yaml.
    before = ["algorithm=grpo", "reward_function=m:f", "seed=3"]
    parameters = resolve(ROOT / "params.yaml", None, [*before, *DPO.settings(1)]).parameters
    assert (parameters.algorithm, parameters.reward_function, parameters.seed) == ("dpo", None, 1)


def test_a_line_is_the_mean_over_all_seeds():
    # PPO: 6 of 8 answers right; SFT: 1 of 4 with each seed, in each of two arms.
    table = table_of(
        [
            measured(PPO, 0, (1, 1, 1, 1), 20.0),
            measured(DPO, 0, (1, 0, 0, 0), None),
            measured(PPO, 1, (1, 1, 0, 0), 40.0),
            measured(DPO, 1, (1, 1, 1, 0), None),
        ],
        bootstrap_samples=200,
    )
    assert [line.name for line in table] == ["sft", "ppo", "dpo"]
    sft, ppo, dpo = table
    assert [line.values["gold"][0] for line in table] == [0.25, 0.75, 0.5]
    assert ppo.values["kl/ref_sequence_mean"][0] == 1.5
    assert (ppo.by_seed, sft.by_seed) == ({0: 1.0, 1: 0.5}, {0: 0.25, 1: 0.25})
    assert (ppo.seconds, dpo.seconds, sft.seconds) == (30.0, None, None)
    # The fake gate passes more than two right answers.
    assert (ppo.passed, dpo.passed, sft.passed) == (1, 1, None)
    assert ppo.numbers()["gate/passed"] == 0.5
    assert {"gold", "time/stage_s"} <= set(ppo.numbers())
    assert not any(name.endswith(("_low", "_high")) for name in ppo.numbers())
    assert "time/stage_s" not in dpo.numbers()


def test_an_interval_resamples_groups_of_all_seeds():
    # One group of four is always right: means of resamples are 0, .25, …, 1, the mean itself .25.
    (line,) = [
        line
        for line in table_of([measured(PPO, seed, (1, 1, 0, 0) if seed else (0,) * 4) for seed in (0, 1)], 2000)
        if line.name == "ppo"
    ]
    mean, low, high = line.values["gold"]
    # P(no such group in four draws) = .75 ^ 4 = .32, P(three or more) = .05, P(four) = .004
    assert (mean, low, high) == (0.25, 0.0, 0.75)


def test_the_table_reads_well():
    text = markdown(table_of([measured(PPO, 0, (1, 1, 1, 1)), measured(VERIFIED, 0, (1, 1, 0, 0), None)], 100))
    lines = text.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:5]]
    assert cells[0] == ["", "gold", "KL to SFT, nats per response", "training, s", "gate"]
    assert cells[2][0] == "sft"
    assert cells[3] == ["ppo", "1.00 [1.00, 1.00]", "2.00 [2.00, 2.00]", "30", "passed"]
    assert (cells[4][0], cells[4][3], cells[4][4]) == ("grpo + verifier ¹", "", "refused")
    assert "¹ grpo + verifier learns from tasks.demos.arithmetic:gold, which the others never see" in text
    assert "by seed" not in text
    assert len({len(line) for line in lines[:5]}) == 1


def test_several_seeds_are_shown_apart_too():
    text = markdown(table_of([measured(PPO, 4, (1, 1, 1, 1)), measured(PPO, 5, (1, 0, 0, 0))], 100))
    assert "passed 1 of 2" in text
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n\n")[1].splitlines()]
    assert rows[0] == ["gold by seed", "4", "5"]
    assert rows[3] == ["ppo", "1.00", "0.25"]
    assert "of 2 seeds" in text
