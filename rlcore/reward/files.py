"""The folder of a reward model: body, head and normalisation in one safetensors file, two configs, a tokenizer."""

from pathlib import Path

from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from rlcore.checkpoint import publish, write_tensors
from rlcore.configs import RewardModelConfig
from rlcore.errors import CheckpointError, ConfigError
from rlcore.models import load_tokenizer
from rlcore.reward.model import HEAD, REWARD_CONFIG, SCALE, SHIFT, WEIGHTS, RewardModel, load_body, read_own_tensors


def save_reward_model(model: RewardModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a folder that `load_reward_model` reads, in one step. Adapters are added to the weights.

    The body's weights keep their own names, so the folder also serves as a body for other models.

    Raises:
        OSError: the disk is full or fails. A folder that was there is untouched.
    """
    plain = model.merged()
    tensors = {
        **plain.body.state_dict(),
        HEAD: plain.head.weight,
        SHIFT: plain.reward_shift,
        SCALE: plain.reward_scale,
    }
    with publish(folder) as draft:
        write_tensors(draft / WEIGHTS, tensors)
        plain.body.config.save_pretrained(draft)
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
    own = read_own_tensors(folder)
    model = RewardModel(config, load_body(folder))
    try:
        model.load_head(own[HEAD])
    except ConfigError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    model.reward_shift.copy_(own[SHIFT])
    model.reward_scale.copy_(own[SCALE])
    return model.eval(), load_tokenizer(folder)
