"""Folders that settings name and that no stage makes: a start model, raw stories, a model that reads.

DVC's `deps` cannot hold a path that is sometimes a hub name and sometimes null. So the content of these folders enters
the stage's key, and the pipeline remembers with which content a stage last ran.
"""

from pathlib import Path

from rlcore.configs import StageConfig
from rlcore.errors import ConfigError
from tasks.records import artifacts

SETTINGS = ("model_name", "source", "text_model", "tokenizer")
"""Settings that may name a folder."""


def check_source(source: str, root: Path) -> None:
    """Let the folder of the data through: the stage demo_data writes it, or it is there.

    Args:
        source: the setting `validate.source`.
        root: the checkout.

    Raises:
        ConfigError: there is no such folder.
    """
    if Path(source) != artifacts.RAW and not (root / source).is_dir():
        raise ConfigError(
            f"found no folder {source} (validate.source). Put demonstrations.jsonl, preferences.jsonl and "
            "prompts.jsonl there, or change validate.source."
        )


def named_folders(config: StageConfig, root: Path) -> dict[str, str]:
    """Folder to md5, for each setting that names a folder outside of what DVC keeps under `data/`, or the champion's.

    Args:
        config: of a stage.
        root: the checkout; the paths are relative to it.
    """
    values = {getattr(config, setting, None) for setting in SETTINGS}
    names = sorted(value for value in values if isinstance(value, str) and value != "scratch")
    return {
        name: artifacts.content_md5(root / name)
        for name in names
        if (root / name).is_dir() and (_is_champion(name) or not Path(name).is_relative_to(artifacts.DATA))
    }


def have_changed(stage: str, folders: dict[str, str], root: Path) -> bool:
    """Whether one of the folders has another content than when the stage last ran with it. A new one has not.

    For the champion's, a new one has: DVC may know results that were made with another champion.
    """
    last = _remembered(root).get(stage, {})
    return any(last.get(name, "" if _is_champion(name) else md5) != md5 for name, md5 in folders.items())


def remember(stage: str, folders: dict[str, str], root: Path) -> None:
    """Note that the stage is up to date with these contents."""
    known = _remembered(root)
    merged = {**known.get(stage, {}), **folders}
    if merged != known.get(stage, {}):
        artifacts.write_json(_note(root), {**known, stage: merged})


def _is_champion(name: str) -> bool:
    return Path(name) == artifacts.CHAMPION_DIR


def _remembered(root: Path) -> dict[str, dict[str, str]]:
    return dict(artifacts.read_json(_note(root))) if _note(root).exists() else {}


def _note(root: Path) -> Path:
    return root / artifacts.STATE / "folders.json"
