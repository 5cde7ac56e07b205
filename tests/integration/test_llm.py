"""`rlhf llm --train` from flags to files: what is written, what is said, and how it ends."""

import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlcore.cli import project, run_logs
from rlcore.cli.stopping import Stopped
from rlcore.errors import DeviceMemoryError, TrainingDiverged
from rlcore.models import load_causal_lm
from rlcore.reward.classifier import reward_model_source
from tests.support import stand_ins
from tests.support.llm import PAIRS, NotedCalls, llm, write_rows

PPO = ("--trainer", "ppo", "--rl-chunk-size", "8", "--rl-max-new-tokens", "6", "--lr", "1e-2")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return stand_ins.gemma3(tmp_path_factory.mktemp("models") / "gemma3")


@pytest.fixture(autouse=True)
def _in_a_folder_with_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_rows(tmp_path / "data/train.jsonl", PAIRS)


@pytest.mark.parametrize("trainer", ["sft", "dpo", "orpo", "ppo", "grpo"])
def test_adapters_are_merged_or_lie_alone(model, trainer):
    sampled = ["--rl-reward-fn", "default", "--rl-max-new-tokens", "6"] if trainer in ("ppo", "grpo") else []
    sampled += ["--model-ref", model, "--rl-chunk-size", "8"] if trainer == "ppo" else []
    sampled += ["--text-column", "chosen"] if trainer == "sft" else []
    argv = ["--trainer", trainer, "--model", model, "--peft", "--lora-r", "2", "--lr", "1e-2", *sampled]
    assert llm(*argv, "--project-name", "merged") == 0
    assert llm(*argv, "--project-name", "alone", "--no-merge-adapter") == 0
    assert not list(Path("alone").glob("model*"))
    merged = AutoModelForCausalLM.from_pretrained("merged")
    base = AutoModelForCausalLM.from_pretrained(model)
    alone = peft.PeftModel.from_pretrained(base, "alone")
    assert alone.peft_config["default"].r == 2
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        start = load_causal_lm(model)(ids).logits
        torch.testing.assert_close(alone(ids).logits, merged(ids).logits)
        assert not torch.allclose(merged(ids).logits, start)
    # the tokenizer is there for both
    assert (Path("alone") / "tokenizer.json").is_file()


def test_a_reward_model_that_ppo_then_uses(model, capsys):
    assert llm("--trainer", "reward", "--model", model, "--project-name", "rm", "--epochs", 30, "--lr", "1e-2") == 0
    good, bad = reward_model_source("rm")(["Say 3.", "Say 3."], ["Here is 3.", "no"])
    assert good > bad
    said = capsys.readouterr().out
    assert "Wrote the reward model of step 60 to rm." in said
    command = said.splitlines()[-1].removeprefix("Next: rlhf llm --train ")
    assert "--reward-model rm --data-path prompts.jsonl --project-name ppo-model" in command
    write_rows(Path("prompts.jsonl"), [{"text": row["prompt"]} for row in PAIRS])
    assert llm(*command.split(), "--rl-chunk-size", 8, "--rl-max-new-tokens", 6) == 0
    AutoModelForCausalLM.from_pretrained("ppo-model")


@pytest.mark.parametrize("trainer", ["sft", "dpo"])
def test_a_run_of_one_step_shows_its_loss(model, capsys, trainer):
    assert llm("--trainer", trainer, "--model", model, "--max-samples", 2, "--text-column", "chosen") == 0
    assert f"{trainer} 1/1: loss " in capsys.readouterr().out


def test_text_without_a_prompt_is_learned_whole(model):
    write_rows(Path("data/train.jsonl"), [{"text": "a b c d e f g"}] * 16)
    assert llm("--trainer", "sft", "--model", model, "--epochs", 20, "--lr", "1e-2") == 0
    chat = load_tokens("a b c d e f g")
    before, after = (nll(load_causal_lm(folder), chat) for folder in (model, "project-name"))
    assert after < before / 2


def load_tokens(text):
    from rlcore.models import load_tokenizer

    tokenizer = load_tokenizer("project-name")
    return torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])


def nll(model, ids):
    with torch.no_grad():
        return model(ids, labels=ids).loss.item()


def test_comparisons_answer_each_prompt_twice_and_the_scores_of_a_pair_add_up_to_0(model, monkeypatch):
    seen = []
    source = project.reward_source

    def watched(params, rows):
        reward = source(params, rows)

        def ask(prompts, responses, metadata=None):
            scores = reward(prompts, responses, metadata)
            seen.append((list(prompts), scores))
            return scores

        ask.responses_per_prompt = reward.responses_per_prompt
        return ask

    monkeypatch.setattr(project, "reward_source", watched)
    flags = ("--rl-env-type", "preference_comparison", "--rl-reward-fn", "length_penalty")
    # as_reward_source would make a plain function of it
    monkeypatch.setattr("rlcore.rollout.trainer.reward_source_of", lambda reward, *_: reward)
    assert llm(*PPO, "--model", model, "--model-ref", model, *flags) == 0
    assert len(seen) == 2
    for prompts, scores in seen:
        assert prompts[::2] == prompts[1::2]
        assert len(set(prompts)) == 4
        assert [a + b for a, b in zip(scores[::2], scores[1::2], strict=True)] == pytest.approx([0.0] * 4)
    assert any(score for _, scores in seen for score in scores)


def test_a_reward_function_of_ones_own_lies_where_the_command_runs(model):
    Path("long_rewards.py").write_text("def long(prompts, responses): return [len(text) for text in responses]")
    assert llm(*PPO, "--model", model, "--model-ref", model, "--rl-reward-fn", "long_rewards:long") == 0


@pytest.mark.parametrize("trainer", ["sft", "dpo"])
def test_a_folder_with_valid_rows_keeps_the_best_checkpoint(model, capsys, trainer):
    write_rows(
        Path("data/valid.jsonl"), [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in PAIRS]
    )
    argv = ("--trainer", trainer, "--model", model, "--epochs", 4, "--lr", "1e-2", "--logging-steps", 1)
    argv += ("--lr", "5e-2", "--warmup-ratio", 0, "--text-column", "chosen") if trainer == "sft" else ()
    assert llm(*argv) == 0
    # the rows say the opposite, so the loss is least after the first epoch, of 2 steps
    said = capsys.readouterr().out
    assert "validation loss" in said
    assert "Wrote the model of step 2" in said
    assert llm(*argv, "--eval-strategy", "no") == 0
    assert "Wrote the model of step 8" in capsys.readouterr().out


def test_without_a_data_path_only_the_folder_data_is_read(model, capsys, monkeypatch):
    Path("data/train.jsonl").unlink()
    write_rows(Path("data/deeper/train.jsonl"), PAIRS)
    write_rows(Path("train.jsonl"), PAIRS)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a wizard"))
    assert llm("--trainer", "dpo", "--model", model) == 2
    assert "data: found none, expected one file `train` ending in .jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TrainingDiverged("Optimiser step 3: the gradient is not finite."), 1),
        (DeviceMemoryError("No room for one row."), 75),
        (torch.OutOfMemoryError("CUDA out of memory."), 75),
        (MemoryError(), 75),
        (OSError(28, "No space left on device"), 75),
        (ConnectionError("reset"), 75),
        (Stopped(15), 143),
        (KeyboardInterrupt(), 130),
    ],
)
def test_how_training_ends_is_the_exit_code(model, monkeypatch, capsys, error, code):
    def trainer_for(stage, implementation):
        def train(*_, resume_dir, **__):
            (resume_dir / "step-1").mkdir(parents=True)
            raise error

        return train

    monkeypatch.setattr(project, "trainer_for", trainer_for)
    assert llm("--trainer", "dpo", "--model", model) == code
    assert not Path("project-name").exists()
    assert [path.name for path in Path("project-name-checkpoints").iterdir()] == ["step-1"]
    assert "Traceback" not in capsys.readouterr().err


def test_files_of_ones_own_are_not_removed_with_the_folder_of_the_checkpoints(model, monkeypatch, capsys):
    monkeypatch.setattr(project, "trainer_for", NotedCalls())
    notes = Path("project-name-checkpoints/notes.txt")
    notes.parent.mkdir()
    (notes.parent / "identity.json").write_text("{}")
    assert llm("--trainer", "dpo", "--model", model) == 0
    assert not notes.parent.exists()
    notes.parent.mkdir()
    notes.write_text("mine")
    assert llm("--trainer", "dpo", "--model", model, "--project-name", "project-name/") == 2
    assert "project-name-checkpoints: found notes.txt, expected nothing" in capsys.readouterr().err
    assert notes.read_text() == "mine"


class Kept:
    """A log of runs in memory; stands for MLflow."""

    def __init__(self):
        self.runs = []

    @contextmanager
    def __call__(self, key, name, settings):
        run = {"key": key, "name": name, "settings": settings, "metrics": [], "samples": [], "ended": None}
        self.runs.append(run)
        self.run = run
        try:
            yield self
        except BaseException as error:
            run["ended"] = type(error).__name__
            raise

    def log(self, step, metrics):
        self.run["metrics"].append((step, dict(metrics)))

    def log_samples(self, step, rows):
        self.run["samples"].append((step, rows))

    def finish(self, result):
        self.run["ended"] = result.best_step


@pytest.fixture
def kept(monkeypatch) -> Kept:
    log = Kept()
    entry = SimpleNamespace(name="mlflow", load=lambda: log)
    monkeypatch.setattr(run_logs, "entry_points", lambda group: [entry] if group == run_logs.GROUP else [])
    return log


def test_a_run_is_logged_where_an_entry_point_says(model, kept):
    write_rows(Path("data/valid.jsonl"), PAIRS[:4])
    argv = ("--trainer", "dpo", "--model", model, "--log", "mlflow", "--logging-steps", 1, "--token", "secret")
    assert llm(*argv, "--push-to-hub", "false") == 2  # the token needs push_to_hub
    assert llm(*argv[:-2]) == 0
    (run,) = kept.runs
    assert (run["name"], run["ended"]) == ("project-name", 2)
    assert [step for step, metrics in run["metrics"] if "dpo/loss" in metrics] == [1, 2]
    assert [row["prompt"] for row in run["samples"][0][1]] == [row["prompt"] for row in PAIRS[:4]]
    assert run["settings"]["llm"]["dpo_beta"] == run["settings"]["dpo"]["beta"] == 0.1
    assert "token" not in run["settings"]["llm"]
    json.dumps(run["settings"])


def test_a_run_that_is_taken_up_is_logged_under_the_same_key(model, kept, monkeypatch):
    calls = NotedCalls()
    monkeypatch.setattr(project, "trainer_for", calls)
    for name, flags in (
        ("a", ()),
        ("b", ("--resume-from-checkpoint", "kept")),
        ("b", ("--resume-from-checkpoint", "kept")),
    ):
        assert llm("--trainer", "dpo", "--model", model, "--log", "mlflow", "--project-name", name, *flags) == 0
    first, second, third = (run["key"] for run in kept.runs)
    assert first != second == third


@pytest.mark.parametrize("torn", [b"", b"../..", b"\xff\xfe", b"0" * 31])
def test_a_key_that_was_not_written_whole_is_replaced(model, kept, monkeypatch, torn):
    monkeypatch.setattr(project, "trainer_for", NotedCalls())
    Path("kept").mkdir()
    Path("kept/run.key").write_bytes(torn)
    flags = ("--trainer", "dpo", "--model", model, "--log", "mlflow", "--resume-from-checkpoint", "kept")
    assert llm(*flags) == 0
    assert re.fullmatch("[0-9a-f]{32}", kept.run["key"])
    assert Path("kept/run.key").read_text() == kept.run["key"]
