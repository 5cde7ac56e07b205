"""The folder of a reward model: an ordinary folder of its body, with the head and the normalisation beside it."""

from pathlib import Path

from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from rlcore.checkpoint import publish, write_tensors
from rlcore.configs import RewardModelConfig
from rlcore.errors import CheckpointError, ConfigError
from rlcore.models import load_tokenizer
from rlcore.reward.model import HEAD, REWARD_CONFIG, RewardModel, load_body, read_head


def save_reward_model(model: RewardModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a folder that `load_reward_model` reads, in one step. Adapters are added to the weights.

    Raises:
        OSError: the disk is full or fails. A folder that was there is untouched.
    """
    plain = model.merged()
    head = {
        "weight": plain.head.weight,
        "reward_shift": plain.reward_shift,
        "reward_scale": plain.reward_scale,
    }
    with publish(folder) as draft:
        plain.body.save_pretrained(draft)
        write_tensors(draft / HEAD, head)
        (draft / REWARD_CONFIG).write_text(plain.config.model_dump_json(indent=2) + "\n", encoding="utf-8")
        tokenizer.save_pretrained(draft)


def load_reward_model(folder: Path) -> tuple[RewardModel, PreTrainedTokenizerBase]:
    """The reward model of a folder, on the CPU and in evaluation mode, and its tokenizer.

    Raises:
        CheckpointError: no reward model is there, a file is damaged, the head is missing, or its shape is not the one
            of the config.
    """
    folder = Path(folder)
    try:
        config = RewardModelConfig.model_validate_json((folder / REWARD_CONFIG).read_bytes())
    except (FileNotFoundError, ValidationError) as error:
        raise CheckpointError(
            f"{folder / REWARD_CONFIG}: {error}. Expected the folder of a reward model; train or restore it."
        ) from error
    head = read_head(folder)
    model = RewardModel(config, load_body(folder))
    try:
        model.load_head(head["weight"])
    except ConfigError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    model.reward_shift.copy_(head["reward_shift"])
    model.reward_scale.copy_(head["reward_scale"])
    return model.eval(), load_tokenizer(folder)
