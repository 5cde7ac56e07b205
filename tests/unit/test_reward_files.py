"""A reward model comes back from its folder, or from its one file, as it was."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rlcore.errors import CheckpointError, ConfigError
from rlcore.reward import (
    MultiObjectiveRewardModel,
    PairwiseRewardModel,
    RewardModel,
    load_reward_model,
    save_reward_file,
    save_reward_model,
)
from rlcore.reward.files import DESCRIPTION, load_weights, read_saved
from rlcore.reward.model import HEAD, REWARD_CONFIG
from tests.support.reward import BODIES, RESPONSES, ROWS, body, config, padded, reward_model, tokenizer, with_effect
from tests.support.tiny import tiny_llama

SAVE = {"folder": save_reward_model, "file": save_reward_file}
KINDS = {
    "RewardModel": lambda: RewardModel(config(), body()),
    "PairwiseRewardModel": lambda: PairwiseRewardModel(config(), body()),
    "MultiObjectiveRewardModel": lambda: MultiObjectiveRewardModel(config(), 3, [0.5, 0.3, 0.2], body()),
}
BATCH = padded(ROWS)


@pytest.fixture
def folder(tmp_path) -> Path:
    save_reward_model(reward_model(), tokenizer(), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def file(tmp_path) -> Path:
    save_reward_file(reward_model(), tokenizer(), tmp_path / "reward_model.pt")
    return tmp_path / "reward_model.pt"


@pytest.mark.parametrize("use_lora", [False, True])
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("form", SAVE)
@torch.no_grad()
def test_the_scores_come_back(tmp_path, form, name, use_lora):
    model = with_effect(reward_model(name, use_lora=use_lora))
    model.reward_shift.fill_(0.25)
    model.reward_scale.fill_(1.5)
    SAVE[form](model, tokenizer(), tmp_path / "model")
    loaded, loaded_tokenizer = load_reward_model(tmp_path / "model")
    # A folder has the adapters added to its weights, which rounds once more. Otherwise nothing may move.
    merged = use_lora and form == "folder"
    torch.testing.assert_close(loaded.scores(*BATCH), model.scores(*BATCH), rtol=0, atol=1e-6 if merged else 0.0)
    assert loaded.config.use_lora is (use_lora and not merged)
    assert loaded_tokenizer(RESPONSES)["input_ids"] == tokenizer()(RESPONSES)["input_ids"]
    assert not loaded.training


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", SAVE)
@torch.no_grad()
def test_each_kind_comes_back_as_itself(tmp_path, form, kind):
    model = KINDS[kind]().eval()
    SAVE[form](model, tokenizer(), tmp_path / "model")
    loaded, _ = load_reward_model(tmp_path / "model")
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    state = loaded.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(loaded.scores(*BATCH), model.scores(*BATCH))


def test_another_process_gives_the_same_scores(tmp_path):
    model = with_effect(reward_model(use_lora=True))
    for form, save in SAVE.items():
        save(model, tokenizer(), tmp_path / form)
    code = (
        "import sys; from rlcore.reward import load_reward_model; loaded = map(load_reward_model, sys.argv[1:3]); "
        "print([model.predict_rewards(sys.argv[3:], tokenizer) for model, tokenizer in loaded])"
    )
    command = [sys.executable, "-c", code, *(str(tmp_path / form) for form in SAVE), *RESPONSES]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = model.predict_rewards(RESPONSES, tokenizer())
    assert json.loads(output) == [pytest.approx(expected, abs=1e-6)] * 2


def with_tied_weights(seed: int) -> RewardModel:
    """A body that holds one embedding under two names."""
    language_model = tiny_llama(seed, vocab_size=300)
    language_model.model.second_name = language_model.model.embed_tokens
    return RewardModel(config(), language_model).eval()


def test_tied_weights_stay_tied(tmp_path):
    model, twin = with_tied_weights(seed=0), with_tied_weights(seed=1)
    save_reward_file(model, tokenizer(), tmp_path / "reward_model.pt")
    load_weights(twin, read_saved(tmp_path / "reward_model.pt"))
    assert twin.body.second_name.weight is twin.body.embed_tokens.weight
    assert torch.equal(twin.scores(*BATCH), model.scores(*BATCH))
    assert len(load_file(tmp_path / "reward_model.pt")) == len(list(model.parameters())) + 2 + len(tokenizer_files())


def tokenizer_files() -> list[str]:
    with TemporaryDirectory() as folder:
        tokenizer().save_pretrained(folder)
        return os.listdir(folder)


def test_the_file_is_one_safetensors_file_with_its_config_in_the_header(tmp_path):
    path = tmp_path / "new folder" / "reward_model.pt"
    save_reward_file(reward_model(temperature=2.0), tokenizer(), path)
    assert [entry.name for entry in path.parent.iterdir()] == ["reward_model.pt"]
    with safe_open(path, framework="pt") as opened:
        description = json.loads(opened.metadata()[DESCRIPTION])
    assert description["kind"] == "RewardModel"
    assert description["config"]["temperature"] == 2.0
    assert description["body"]["model_type"] == "llama"
    assert load_file(path)["head.weight"].shape == (1, 16)


@pytest.mark.parametrize("form", SAVE)
def test_weights_that_are_not_finite_are_not_saved(tmp_path, form):
    model = reward_model()
    path = tmp_path / "model"
    SAVE[form](model, tokenizer(), path)
    before = load_reward_model(path)[0].scores(*BATCH)
    with torch.no_grad():
        model.body.norm.weight[0] = float("nan")
    with pytest.raises(CheckpointError, match="norm.weight holds NaN or infinity"):
        SAVE[form](model, tokenizer(), path)
    assert torch.equal(load_reward_model(path)[0].scores(*BATCH), before)


def test_a_save_that_fails_leaves_the_old_file(file, monkeypatch):
    before = file.read_bytes()

    def full_disk(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlcore.reward.files.write_tensors", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_reward_file(reward_model(temperature=3.0), tokenizer(), file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="found a folder, expected a file"):
        save_reward_file(reward_model(), tokenizer(), tmp_path)


def test_a_subclass_has_no_form_on_disk(tmp_path):
    class Own(RewardModel):
        pass

    with pytest.raises(ConfigError, match="Own: found a kind"):
        save_reward_file(Own(config(), body()), tokenizer(), tmp_path / "model")


def test_training_may_start_from_a_reward_model(folder):
    model = RewardModel(config(model_name=str(folder), seed=9))
    assert torch.equal(model.head.weight, load_reward_model(folder)[0].head.weight)


def test_starting_with_another_number_of_outputs_names_both_shapes(folder):
    with pytest.raises(ConfigError, match=r"shape \(1, 16\), expected \(3, 16\)"):
        RewardModel(config(model_name=str(folder), num_labels=3))


def changed(path: Path, **settings: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_a_head_that_is_not_the_configs_is_refused(folder):
    changed(folder / REWARD_CONFIG, num_labels=3)
    with pytest.raises(CheckpointError, match=r"shape \(1, 16\), expected \(3, 16\)"):
        load_reward_model(folder)


def test_a_folder_of_an_unknown_kind_is_refused(folder):
    changed(folder / REWARD_CONFIG, kind="Oracle")
    with pytest.raises(CheckpointError, match="Oracle"):
        load_reward_model(folder)


def test_a_folder_that_names_no_kind_is_a_reward_model(folder):
    settings = json.loads((folder / REWARD_CONFIG).read_text())
    settings.pop("kind")
    (folder / REWARD_CONFIG).write_text(json.dumps(settings))
    assert type(load_reward_model(folder)[0]) is RewardModel


def test_objectives_without_their_weights_are_refused(tmp_path):
    save_reward_model(KINDS["MultiObjectiveRewardModel"](), tokenizer(), tmp_path / "model")
    head = load_file(tmp_path / "model" / HEAD)
    head.pop("objective_weights")
    save_file(head, tmp_path / "model" / HEAD)
    with pytest.raises(CheckpointError, match="objective_weights"):
        load_reward_model(tmp_path / "model")


@pytest.mark.parametrize("name", [HEAD, REWARD_CONFIG])
def test_a_folder_without_its_head_or_config_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_reward_model(folder)


def test_a_head_file_without_the_weight_is_refused(folder):
    head = load_file(folder / HEAD)
    save_file({key: value for key, value in head.items() if key != "weight"}, folder / HEAD)
    with pytest.raises(CheckpointError, match="found no weight"):
        load_reward_model(folder)


def test_a_body_with_a_missing_weight_is_refused(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="norm.weight"):
        load_reward_model(folder)


def rewritten(file: Path, metadata: dict[str, str] | None, **tensors: torch.Tensor) -> None:
    save_file(load_file(file) | tensors, file, metadata=metadata)


def header(file: Path) -> dict[str, str]:
    with safe_open(file, framework="pt") as opened:
        return dict(opened.metadata())


def test_a_file_without_its_head_is_refused(file):
    metadata, weights = header(file), load_file(file)
    weights.pop("head.weight")
    save_file(weights, file, metadata=metadata)
    with pytest.raises(CheckpointError, match=r"found no \['head.weight'\]"):
        load_reward_model(file)


def test_a_file_that_describes_no_reward_model_is_refused(file):
    rewritten(file, None)
    with pytest.raises(CheckpointError, match="describes no reward model"):
        load_reward_model(file)


def test_a_tokenizer_file_never_leaves_its_folder(file, tmp_path):
    rewritten(file, header(file), **{"tokenizer/../../evil": torch.zeros(1, dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match="leaves its folder"):
        load_reward_model(file)
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"PK", b"\x08\x00\x00\x00\x00\x00\x00\x00{"])
def test_a_damaged_file_is_refused(file, content):
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="reward_model.pt"):
        load_reward_model(file)


def test_a_path_with_nothing_is_refused(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(CheckpointError, match="Expected the folder or file of a reward model"):
            load_reward_model(path)


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", [HEAD, "model.safetensors"])
def test_pickled_weights_of_a_folder_are_not_read(folder, tmp_path, name):
    (folder / name).write_bytes(pickle.dumps(Trap(tmp_path / "marker")))
    with pytest.raises(CheckpointError):
        load_reward_model(folder)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("write", [torch.save, lambda state, path: path.write_bytes(pickle.dumps(state))])
def test_a_pickled_file_is_refused_with_a_way_to_convert_it(tmp_path, write):
    write({"head.weight": Trap(tmp_path / "marker")}, tmp_path / "reward_model.pt")
    with pytest.raises(CheckpointError, match=r"torch.save\(\).*weights_only=True.*save_model\(\)"):
        load_reward_model(tmp_path / "reward_model.pt")
    assert not (tmp_path / "marker").exists()
