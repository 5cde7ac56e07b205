"""The outputs of the stages before `evaluate`, made by random models: enough to measure and to register."""

import shutil
from pathlib import Path

from rlcore.configs import RewardModelConfig, ScratchModelConfig
from rlcore.models import save_causal_lm
from rlcore.reward import RewardModel, save_reward_model
from rlcore.scratch import build_model
from tasks.records.artifacts import (
    DEMONSTRATIONS,
    NO_CHAMPION,
    PARAMS,
    POLICY_DIR,
    PREFERENCES,
    PROMPTS,
    REWARD_DIR,
    SAMPLES,
    SFT_DIR,
    TRACES,
    write_rows,
    write_text,
)
from tests.support.tiny import tiny_tokenizer

CHECKOUT = Path(__file__).resolve().parents[2]
SHAPE = ScratchModelConfig(
    vocab_size=300, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, initializer_range=0.3
)
HELD_OUT = [
    {"prompt": f"Add {a} and {b}.", "group": f"plus-1-{a}-{b}", "split": "held_out", "answer": a + b}
    for a, b in ((1, 2), (1, 2), (3, 4), (9, 9), (0, 0), (8, 7))
]
VALIDATION = [
    {"prompt": f"What is {a} plus 1?", "group": f"plus-0-{a}-1", "split": "validation", "answer": a + 1}
    for a in range(4)
]


def save_model(folder: Path, seed: int) -> None:
    """A chat model with random weights."""
    save_causal_lm(build_model(SHAPE, tiny_tokenizer(), seed), tiny_tokenizer(), folder)


def make_workspace(folder: Path, policy_seed: int = 1) -> Path:
    """Lay out a folder as a checkout after the stage `policy`. SFT has seed 0; there is no champion."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(CHECKOUT / PARAMS, folder / PARAMS)
    save_model(folder / SFT_DIR, 0)
    save_model(folder / POLICY_DIR, policy_seed)
    body = build_model(SHAPE, tiny_tokenizer(), 5)
    reward = RewardModel(RewardModelConfig(model_name="tiny", max_length=64), body)
    save_reward_model(reward.eval(), tiny_tokenizer(), folder / REWARD_DIR)
    write_text(folder / NO_CHAMPION, "")
    write_rows(folder / PROMPTS["held_out"], HELD_OUT)
    write_rows(folder / PROMPTS["validation"], VALIDATION)
    pairs = [
        {"prompt": row["prompt"], "chosen": f"{row['answer']}", "rejected": "I think it is 5, maybe.", "group": "g"}
        for row in HELD_OUT
    ]
    write_rows(folder / PREFERENCES["held_out"], pairs)
    training = [{"prompt": f"Take {a} from 9.", "group": f"minus-{a}", "split": "train"} for a in range(3)]
    for path in (DEMONSTRATIONS["train"], PREFERENCES["train"], PROMPTS["train"]):
        write_rows(folder / path, training)
    write_rows(folder / SAMPLES["policy"], _validation_samples())
    write_rows(folder / TRACES["policy"], _policy_trace())
    return folder


def make_training_workspace(folder: Path) -> Path:
    """Lay out a folder as a checkout with rows to train on, whose column `answer` is a number here and a text there."""
    make_workspace(folder)
    sums = [(f"What is {a} plus 2?", f"The answer is {a + 2}.", a + 2 if a % 2 else str(a + 2)) for a in range(8)]
    rows = [{"prompt": prompt, "answer": answer} for prompt, _, answer in sums]
    texts = [text for _, text, _ in sums]
    for split in ("train", "validation"):
        write_rows(folder / PROMPTS[split], rows)
        demonstrations = [{**row, "response": text} for row, text in zip(rows, texts, strict=True)]
        write_rows(folder / DEMONSTRATIONS[split], demonstrations)
        pairs = [{**row, "chosen": text, "rejected": "7"} for row, text in zip(rows, texts, strict=True)]
        write_rows(folder / PREFERENCES[split], pairs)
    return folder


def _validation_samples() -> list[dict]:
    """Steps 0, 3, 6 and 9; at step s the first s / 3 of the four answers are right."""
    return [
        {
            "step": step,
            "prompt": row["prompt"],
            "response": f"The answer is {row['answer']}." if position < step // 3 else "7",
            "finished": True,
            "score": 0.5,
        }
        for step in (0, 3, 6, 9)
        for position, row in enumerate(VALIDATION)
    ]


def _policy_trace() -> list[dict]:
    measured = [
        {
            "step": step,
            "time": 0.0,
            "kl/ref_sequence_mean": step / 9,
            "validation/score_mean": step / 9,
            "validation/ref_sequence_mean": step / 9,
        }
        for step in (0, 3, 6, 9)
    ]
    return [*measured, {"step": 9, "time": 0.0, "best/step": 6.0}]
