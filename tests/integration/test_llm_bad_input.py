"""What a person gets wrong ends `rlhf llm --train` in one line that says what to change; nothing is written."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from rlcore.cli import run_logs
from rlcore.models import load_causal_lm, load_tokenizer
from rlcore.run_folder import only_run_in
from tests.support import stand_ins
from tests.support.checkout import ROOT
from tests.support.llm import PAIRS, llm, write_rows
from tests.support.tools import TOOL_TEMPLATE

HOTEL = ["--trainer", "grpo", "--rl-env-module", "my_envs.hotel_env", "--rl-env-class", "HotelEnv"]
SCORED = ["--trainer", "grpo", "--rl-reward-fn", "default"]

CASES = {
    "trainer": (["--trainer", "chess"], "--trainer='chess': "),
    "trainer that there is not": (["--trainer", "distillation"], "there is no trainer for distillation. Use sft on"),
    "flag": (["--trainer", "dpo", "--dpo-betta", "1"], "there is no flag --dpo-betta. Did you mean --dpo-beta?"),
    "flag of another trainer": (["--trainer", "dpo", "--rl-gamma", "0.9"], "not read --rl-gamma=0.9 (it is for ppo)"),
    "value": (["--trainer", "dpo", "--lr", "fast"], "--lr='fast': "),
    "two faults": (["--trainer", "dpo", "--lr", "0", "--epochs", "-1"], "--epochs='-1': "),
    "quantization": (["--trainer", "sft", "--quantization", "int4"], "bitsandbytes"),
    "column": (["--trainer", "dpo", "--text-column", "better"], "expected better. Name the columns with --text-column"),
    "column of a mapping": (["--trainer", "dpo", "--column-mapping", '{"chosen": "better"}'], "expected better"),
    "mapping of a column": (["--trainer", "dpo", "--column-mapping", '{"best": "chosen"}'], "dpo reads no column best"),
    "file": (["--trainer", "dpo", "--data-path", "nothing.jsonl"], "Found no file or folder 'nothing.jsonl'"),
    "file that is no JSON": (["--trainer", "dpo", "--data-path", "torn.jsonl"], "torn.jsonl: "),
    "row": (["--trainer", "dpo", "--data-path", "hole.jsonl"], "Row 1, chosen: found None"),
    "model": (["--trainer", "dpo", "--model", "./nowhere"], "Found no folder './nowhere'"),
    "adapters of no module": (
        ["--trainer", "sft", "--text-column", "chosen", "--peft", "--target-modules", "nothing"],
        "--target-modules=['nothing']",
    ),
    "dropout in policy adapters": (
        ["--trainer", "sft", "--peft", "--lora-dropout", "0.5"], "policies are trained without dropout"
    ),
    "ppo without a reward": (
        ["--trainer", "ppo"], "ppo found neither --rl-reward-model-path nor --model-ref, expected at least one"
    ),
    "grpo without a reward": (
        ["--trainer", "grpo"], "grpo found neither --rl-env-class nor --rl-reward-model-path nor --rl-reward-fn"
    ),
    "reward model": (["--trainer", "ppo", "--rl-reward-model-path", "./no-reward"], "no-reward"),
    "reward function without a name": (
        ["--trainer", "ppo", "--model-ref", "it", "--rl-reward-fn", "custom"], "Name it as module:function"
    ),
    "group size": (
        [*SCORED, "--rl-num-generations", "3"],
        "--rl-num-generations=3 does not divide --batch-size * --gradient-accumulation=8",
    ),
    "batch that is no whole number of steps": (
        ["--trainer", "ppo", "--model-ref", "it", "--batch-size", "3"],
        "--batch-size=3 does not divide --rl-mini-batch-size=8",
    ),
    "JSON": (["--trainer", "ppo", "--model-ref", "it", "--rl-env-config", "{stop"], "expected a JSON object"),
    "JSON without an end": (["--trainer", "ppo", "--model-ref", "it", "--rl-env-config", "[" * 5000], "a JSON object"),
    "number beyond any size": (["--trainer", "dpo", "--batch-size", "1" + "0" * 30], "expected less than 4294967296"),
    "adapters that TRL does not train": (
        ["--trainer", "dpo", "--peft", "--target-modules", "lm_head"], "TRL: Applying a PEFT adapter to `lm_head`"
    ),
    "JSON that is no object": (["--trainer", "ppo", "--model-ref", "it", "--rl-reward-weights", "[1]"], "dictionary"),
    "class that is no environment": (
        ["--trainer", "grpo", "--rl-env-module", "json", "--rl-env-class", "JSONDecoder"],
        "json.JSONDecoder has no method build_dataset, score_episode, get_tools",
    ),
    "environment without a method": (
        ["--trainer", "grpo", "--rl-env-module", "half_envs", "--rl-env-class", "Half"], "has no method get_tools"
    ),
    "environment's module": (
        ["--trainer", "grpo", "--rl-env-module", "no_envs", "--rl-env-class", "Env"], "no_envs was not found"
    ),
    "environment's argument": ([*HOTEL, "--rl-env-config", '{"beds": 2}'], "beds"),
    "template that rewrites a turn": (
        [*HOTEL, "--rl-max-turns", "2", "--model", "{forgetful}"],
        "Use a template that leaves earlier turns as they are",
    ),
    "tokenizer without an end token": (["--trainer", "dpo", "--model", "{endless}"], "The tokenizer has no end token"),
    "result in place of something else": (
        ["--trainer", "dpo", "--project-name", "data"], "'data': found a folder that holds neither a model nor a"
    ),
    "result in place of an input": (["--trainer", "dpo", "--project-name", "{model}"], "that is model too"),
    "result around an input": (
        ["--trainer", "dpo", "--project-name", "tuned", "--data-path", "tuned/rows.jsonl"],
        "--data-path='tuned/rows.jsonl' lies there, which the result would replace",
    ),
    "machine": (["--trainer", "dpo", "--backend", "spaces"], "backend='spaces': expected 'local'"),
    "hub without a repository": (
        ["--trainer", "dpo", "--push-to-hub"], "--push-to-hub found no repository. Name it with --repo-id"
    ),
    "MLflow outside a checkout": (
        ["--trainer", "dpo", "--log", "mlflow"], "--log='mlflow' needs a checkout: found no dvc.yaml here or above"
    ),
    "MLflow outside a checkout, with a folder to go on from": (
        ["--trainer", "dpo", "--log", "mlflow", "--resume-from-checkpoint", "kept"], "found no dvc.yaml here or above"
    ),
}  # fmt: skip
HALF = """
class Half:
    def build_dataset(self, tokenizer): return [{"prompt": "Which?"}]
    def score_episode(self, model, tokenizer, completion, case_idx): return 0.0
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    made = {"model": stand_ins.gemma3(place / "gemma3"), "forgetful": stand_ins.qwen2(place / "forgetful")}
    tokenizer = load_tokenizer(made["forgetful"])
    # writes an end token behind the last turn only
    tokenizer.chat_template = TOOL_TEMPLATE.replace("<|end|>", "{% if loop.last %}<|end|>{% endif %}")
    tokenizer.save_pretrained(made["forgetful"])
    tokenizer = load_tokenizer(made["model"])
    tokenizer.eos_token = None
    load_causal_lm(made["model"]).save_pretrained(place / "endless")
    tokenizer.save_pretrained(place / "endless")
    return made | {"endless": place / "endless"}


@pytest.fixture(autouse=True)
def _in_a_folder_with_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write_rows(tmp_path / "data/train.jsonl", PAIRS)
    write_rows(tmp_path / "hole.jsonl", [PAIRS[0], PAIRS[1] | {"chosen": None}])
    write_rows(tmp_path / "tuned/rows.jsonl", PAIRS)
    (tmp_path / "tuned/config.json").write_text("{}")
    (tmp_path / "torn.jsonl").write_text('{"prompt": "Wh')
    (tmp_path / "half_envs.py").write_text(HALF)


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_ends_in_one_line_exit_code_2_and_nothing_written(models, capsys, case):
    argv, named = CASES[case]
    before, folders = files(), sorted(Path.cwd().iterdir())
    for name, folder in models.items():
        argv = [flag.replace(f"{{{name}}}", str(folder)) for flag in argv]
    assert llm("--model", models["model"], *argv) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("rlhf: ")] == said[-1:]
    assert named in said[-1]
    assert (files(), sorted(Path.cwd().iterdir())) == (before, folders)


def test_a_second_run_into_the_same_place_leaves_the_first_one_its_checkpoints(models, capsys):
    checkpoints = Path("project-name-checkpoints")
    with only_run_in(checkpoints):
        (checkpoints / "identity.json").write_text("of the first")
        assert llm("--trainer", "dpo", "--model", models["model"]) == 2
        assert (checkpoints / "identity.json").read_text() == "of the first"
    assert "another run writes here, expected none" in capsys.readouterr().err


def test_without_the_module_of_a_log_the_checkout_is_named(models, capsys, monkeypatch):
    entry = EntryPoint("mlflow", "no_such_package.runs:mlflow", run_logs.GROUP)
    monkeypatch.setattr(run_logs, "entry_points", lambda group: [entry])
    assert llm("--trainer", "dpo", "--model", models["model"], "--log", "mlflow") == 2
    assert "--log='mlflow' needs a checkout: found no module 'no_such_package'" in capsys.readouterr().err


def test_a_padding_token_that_is_the_end_token_changes_nothing(models, tmp_path):
    """Masks come from lengths, so the end of an answer is learned all the same."""
    tokenizer = load_tokenizer(models["model"])
    tokenizer.pad_token = tokenizer.eos_token
    load_causal_lm(models["model"]).save_pretrained(tmp_path / "padded")
    tokenizer.save_pretrained(tmp_path / "padded")
    flags = ["--trainer", "sft", "--text-column", "chosen", "--lr", "1e-2"]
    for name, model in (("apart", models["model"]), ("same", "padded")):
        assert llm(*flags, "--model", model, "--project-name", name) == 0
    apart, same = (load_causal_lm(name).state_dict() for name in ("apart", "same"))
    assert all(torch.equal(apart[name], same[name]) for name in apart)
