"""The flags of the hub: which repository, made before training, gets the result after it."""

from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from rlcore.cli import project
from tests.support.llm import PAIRS, NotedCalls, llm, write_rows


class Hub:
    """Notes what it is asked, and refuses what `refuses` says.

    Attributes:
        asked: in order, with the token.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.refuses: dict[str, Exception] = {}

    def __call__(self, token: str | None) -> Any:
        def answer(name: str) -> Any:
            def call(*args: Any, **settings: Any) -> SimpleNamespace:
                self.asked.append((name, {"token": token, "args": args, **settings}))
                if name in self.refuses:
                    raise self.refuses[name]
                return SimpleNamespace(repo_id="me/it", repo_url="https://huggingface.co/me/it")

            return call

        return SimpleNamespace(create_repo=answer("create"), upload_folder=answer("upload"))


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data/train.jsonl", PAIRS)
    made = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", made)
    calls = NotedCalls()

    def trainer_for(stage: str, implementation: str) -> Any:
        made.asked.append(("train", {}))
        return calls(stage, implementation)

    monkeypatch.setattr(project, "trainer_for", trainer_for)
    return made


def refused(status: int) -> HfHubHTTPError:
    return HfHubHTTPError(f"{status} Forbidden", response=SimpleNamespace(status_code=status, headers={}, request=None))


def test_the_repository_is_made_before_training_and_filled_after_it(hub, capsys):
    assert llm("--trainer", "dpo", "--push-to-hub", "--repo-id", "me/it", "--token", "secret") == 0
    assert [name for name, _ in hub.asked] == ["create", "train", "upload"]
    create, upload = hub.asked[0][1], hub.asked[2][1]
    assert (create["args"], create["private"], create["exist_ok"]) == (("me/it",), True, True)
    assert (upload["repo_id"], str(upload["folder_path"])) == ("me/it", "project-name")
    assert create["token"] == upload["token"] == "secret"
    said = capsys.readouterr()
    assert "Uploaded it to https://huggingface.co/me/it." in said.out
    assert "secret" not in said.out + said.err


@pytest.mark.parametrize(
    ("flags", "part", "value"),
    [
        (["--username", "me"], "args", ("me/project-name",)),
        (["--username", "me", "--project-name", "runs/best"], "args", ("me/best",)),
        (["--repo-id", "me/it", "--no-hub-private"], "private", False),
        (["--repo-id", "me/it"], "token", None),
    ],
)
def test_flags_say_whose_repository_and_who_sees_it(hub, flags, part, value):
    assert llm("--trainer", "dpo", "--push-to-hub", *flags) == 0
    assert hub.asked[0][1][part] == value


def test_without_the_flag_the_hub_is_never_asked(hub):
    assert llm("--trainer", "dpo") == 0
    assert [name for name, _ in hub.asked] == ["train"]


@pytest.mark.parametrize("error", [refused(403), LocalTokenNotFoundError("Token is required.")])
def test_a_hub_that_refuses_is_heard_before_training(hub, capsys, error):
    hub.refuses["create"] = error
    assert llm("--trainer", "dpo", "--push-to-hub", "--repo-id", "me/it") == 2
    assert [name for name, _ in hub.asked] == ["create"]
    assert "me/it: the hub refuses the repository: " in capsys.readouterr().err


def test_a_hub_that_refuses_in_the_end_leaves_the_folder_and_says_how_to_upload_it(hub, capsys, tmp_path):
    hub.refuses["upload"] = refused(500)
    assert llm("--trainer", "dpo", "--push-to-hub", "--repo-id", "me/it") == 2
    assert "Upload it with `hf upload me/it project-name`" in capsys.readouterr().err
    assert (tmp_path / "project-name/config.json").is_file()
