"""The result of a run on the hub."""

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

from rlcore.cli.params import LLMTrainingParams
from rlcore.errors import ConfigError


def repository_of(params: LLMTrainingParams) -> str:
    """Name of the repository, `owner/name`.

    Raises:
        ConfigError: the settings name none.
    """
    if params.repo_id is None and params.username is None:
        raise ConfigError("push_to_hub found no repository. Name it with repo_id, owner/name.")
    return params.repo_id or f"{params.username}/{Path(params.project_name).name}"


def claim_repository(params: LLMTrainingParams) -> None:
    """Make the repository of a run where it is not there: the hub may refuse before hours of training, not after.

    Raises:
        ConfigError: the hub refuses.
    """
    name = repository_of(params)
    try:
        huggingface_hub.HfApi(token=params.token).create_repo(name, private=params.hub_private, exist_ok=True)
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError) as error:
        raise ConfigError(
            f"{name}: the hub refuses the repository: {str(error).splitlines()[0]} Log in with `hf auth login` or set "
            "HF_TOKEN, and check repo_id."
        ) from error


def upload(params: LLMTrainingParams, folder: Path) -> None:
    """Upload a model folder.

    Raises:
        ConfigError: the hub refuses. The folder is whole, and can be uploaded by hand.
    """
    name = repository_of(params)
    try:
        huggingface_hub.HfApi(token=params.token).upload_folder(
            repo_id=name, folder_path=folder, commit_message=f"Trained with {params.stage} from {params.model}"
        )
    except HfHubHTTPError as error:
        raise ConfigError(
            f"{folder} is trained, but the hub refuses it: {str(error).splitlines()[0]} Upload it with "
            f"`hf upload {name} {folder}`."
        ) from error
