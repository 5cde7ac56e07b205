import json
import re
from collections import Counter
from pathlib import Path

import pytest

from rlcore.configs import DemoDataConfig
from rlcore.errors import ConfigError, DataError
from tasks.demos import is_checker, named_function
from tasks.demos.arithmetic import STYLE_UTILITY, STYLES, generate, gold, split_cells


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    folder = tmp_path_factory.mktemp("raw")
    generate(DemoDataConfig(), folder)
    return {
        name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("demonstrations", "preferences", "prompts")
    }


def truth(row: dict) -> int:
    """The answer, read off the group's name."""
    return sum(map(int, row["group"].split("-")[2:]))


def utility(answer: str, right: int) -> float:
    """2 for the right number, and the annotator's taste in styles."""
    number = int(re.findall("[0-9]+", answer)[0])
    style = next(name for name, text in STYLES.items() if text.format(n=number) == answer)
    return 2 * (number == right) + STYLE_UTILITY[style]


@pytest.mark.parametrize(
    ("response", "finished", "expected"),
    [
        ("The answer is 12.", True, (1, 1, 1)),
        ("Sure! The answer is 12.", True, (1, 1, 1)),
        ("The answer is 2.", True, (0, 0, 1)),
        ("12", True, (0, 1, 0)),
        ("I think it is 12, maybe.", True, (0, 1, 0)),
        ("The answer is 12.", False, (0, 1, 0)),  # never ended
        ("The answer is 12. ", True, (0, 1, 0)),
        ("The answer is 12.\n", True, (0, 1, 0)),
        ("The answer is 12. The answer is 12.", True, (0, 0, 0)),  # two numbers
        ("The answer is 012.", True, (0, 0, 1)),
        ("The answer is 112.", True, (0, 0, 1)),
        ("The answer is １２.", True, (0, 0, 0)),  # full-width digits are digits to Python
        ("", True, (0, 0, 0)),
    ],
)
def test_the_checker_reads_the_whole_response(response: str, finished: bool, expected: tuple[int, int, int]):
    assert tuple(gold({"answer": 12}, response, finished).values()) == expected


def test_a_prompt_without_an_answer_is_named():
    with pytest.raises(DataError, match="'Add 1 and 2.' has no `answer`"):
        gold({"prompt": "Add 1 and 2."}, "3", True)


def test_no_training_row_comes_from_a_held_out_or_validation_cell(rows):
    train, validation, held_out = ({cell.group for cell in cells} for cells in split_cells(DemoDataConfig()))
    assert [len(cells) for cells in (train, validation, held_out)] == [216, 24, 60]  # of 300: the rest, 8 %, 20 %
    assert len(train | validation | held_out) == 300
    assert {row["group"] for row in rows["demonstrations"]} == train
    for split, cells in (("train", train), ("validation", validation), ("held_out", held_out)):
        assert {row["group"] for row in rows["preferences"] if row["split"] == split} <= cells
        assert {row["group"] for row in rows["prompts"] if row["split"] == split} == cells


def test_only_prompts_carry_the_answer(rows):
    assert all("answer" not in row for name in ("demonstrations", "preferences") for row in rows[name])
    assert all(row["answer"] == truth(row) for row in rows["prompts"])
    assert Counter(row["split"] for row in rows["prompts"]) == {"train": 216 * 9, "validation": 120, "held_out": 300}


def test_demonstrations_are_as_flawed_as_intended(rows):
    demonstrations = rows["demonstrations"]
    checks = [gold({"answer": truth(row)}, row["response"], True) for row in demonstrations]
    # .45 of the sums carry: .45 * .4 + .55 * .9 = .675 right, .6 of the styles have the right form -> .405 gold.
    # Sampling error of 6000 rows is .006; that of the share of carries among 216 cells is .034 * .5.
    assert sum(check["number_right"] for check in checks) / 6000 == pytest.approx(0.675, abs=0.03)
    assert sum(check["gold"] for check in checks) / 6000 == pytest.approx(0.405, abs=0.03)
    assert len({row["prompt"] for row in demonstrations}) == pytest.approx(1800, abs=100)
    wrong = [
        (truth(row), int(re.findall("[0-9]+", row["response"])[0]))
        for row, check in zip(demonstrations, checks, strict=True)
        if not check["number_right"]
    ]
    assert {right - number for right, number in wrong if right >= 10} == {10}
    assert {right - number for right, number in wrong if right < 10} == {-1, 1}


def test_preferences_follow_a_noisy_annotator(rows):
    pairs = [row for row in rows["preferences"] if row["split"] == "train"]
    gaps = [utility(row["chosen"], truth(row)) - utility(row["rejected"], truth(row)) for row in pairs]
    assert len(pairs) == 8000
    assert 0 not in gaps
    # sigmoid(3 * 2) = .9975 for right against wrong, sigmoid(3 * .1) = .574 for politeness alone
    big = [gap > 0 for gap in gaps if abs(gap) > 1.9]
    small = [gap > 0 for gap in gaps if abs(gap) < 0.2]
    assert sum(big) / len(big) == pytest.approx(0.9975, abs=0.003)
    assert sum(small) / len(small) == pytest.approx(0.574, abs=0.06)
    longer = [len(row["chosen"]) > len(row["rejected"]) for row in pairs]
    equal = [len(row["chosen"]) == len(row["rejected"]) for row in pairs]
    assert (sum(longer) + sum(equal) / 2) / 8000 == pytest.approx(0.55, abs=0.02)


def test_validation_pairs_are_about_the_validation_prompts(rows):
    asked = Counter(row["prompt"] for row in rows["prompts"] if row["split"] == "validation")
    pairs = Counter(row["prompt"] for row in rows["preferences"] if row["split"] == "validation")
    assert pairs == {prompt: 4 * count for prompt, count in asked.items()}


def test_wrong_answers_come_from_the_whole_range(rows):
    numbers = {
        int(re.findall("[0-9]+", row[side])[0])
        for row in rows["preferences"]
        for side in ("chosen", "rejected")
        if truth(row) == 9
    }
    assert numbers == set(range(19))


def test_held_out_pairs_are_clear_and_without_noise(rows):
    pairs = [row for row in rows["preferences"] if row["split"] == "held_out"]
    assert len(pairs) == 600
    assert all(utility(row["chosen"], truth(row)) - utility(row["rejected"], truth(row)) >= 1 - 1e-9 for row in pairs)


def test_the_seed_decides_every_byte(tmp_path: Path):
    small = DemoDataConfig(demonstrations=50, preference_pairs=50, held_out_pairs=5)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate(small.model_copy(update={"seed": seed}), tmp_path / name)
    for file in ("demonstrations.jsonl", "preferences.jsonl", "prompts.jsonl"):
        first, same, other = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert first == same
        assert first != other


@pytest.mark.parametrize("shares", [{"held_out_share": 0.001}, {"held_out_share": 0.5, "validation_share": 0.5}])
def test_shares_that_leave_no_cell_are_refused(shares: dict[str, float], tmp_path: Path):
    with pytest.raises(ConfigError, match="held_out_share"):
        generate(DemoDataConfig(**shares), tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("arithmetic", "module:function"),
        ("tasks.demos.nothing:generate", "demo_data.dataset: .* tasks.demos.nothing was not found"),
        ("tasks.demos.arithmetic:nothing", "demo_data.dataset: .* no function or class 'nothing'"),
    ],
)
def test_a_name_that_is_no_function_is_explained(name: str, said: str):
    with pytest.raises(ConfigError, match=said):
        named_function("demo_data.dataset", name)


def test_a_name_is_resolved():
    assert named_function("evaluate.gold", "tasks.demos.arithmetic:gold") is gold


def test_a_checker_is_known_by_the_names_of_its_parameters():
    assert is_checker(gold)
    assert not is_checker(lambda prompts, responses, metadata: [])
    assert not is_checker(lambda row, text, ended: {})
