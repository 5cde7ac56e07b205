"""A checkout after `evaluate`, an empty registry, and the short way to register."""

import json
import shutil
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from rlcore.configs import RegisterConfig
from tasks.gate import GateReport, Reason
from tasks.records.artifacts import (
    CHAMPION_DIR,
    DATA,
    EVALUATE,
    POLICY_DIR,
    REWARD_DIR,
    SAMPLES,
    SFT_DIR,
    content_md5,
    write_json,
    write_rows,
    write_text,
)
from tasks.records.versioning import StageFacts
from tasks.registry.registration import Registered, register
from tasks.registry.store import POLICY_MODEL, REWARD_MODEL, SFT_MODEL

PASSED = GateReport(True, (Reason("gold/gain", 0.4, 0.1, True), Reason("kl_sequence", 1.2, 2.0, True)))
REFUSED = GateReport(
    False, (Reason("gold/gain", 0.4, 0.1, True), Reason("kl_sequence", None, 2.0, False, "Look at the KL."))
)
RAW = DATA / "raw" / "demo"


class Killed(BaseException):
    """A kill, which no handler catches."""


class DyingClient:
    """A client whose process is killed just before one of its writes.

    Attributes:
        client: what does the work.
        write: number of the write that it does not live to do, from 1 on.
        written: how many it did.
    """

    def __init__(self, client: MlflowClient, write: int):
        self.client = client
        self.write = write
        self.written = 0

    def __getattr__(self, name: str):
        method = getattr(self.client, name)
        if not name.startswith(("create_", "set_", "log_", "update_", "delete_", "finalize_")):
            return method

        def write(*arguments, **settings):
            if self.written + 1 == self.write:
                raise Killed
            self.written += 1
            return method(*arguments, **settings)

        return write


class Registry:
    """A checkout after `evaluate`, an empty registry, and the short way to register.

    Attributes:
        root: the checkout; its DVC cache holds what `keep` put there.
        client: of a store that other tests share one after the other.
        run_id: the run that versions belong to.
    """

    def __init__(self, root: Path, client: MlflowClient, experiment_id: str):
        self.root = root
        self.client = client
        self.run_id = client.create_run(experiment_id).info.run_id
        write_text(root / ".dvc" / "config", "[core]\n    no_scm = true\n    analytics = false\n")
        self.measure(0.8)
        write_rows(root / SAMPLES["evaluate"], [{"step": 0, "prompt": "1 | 2?", "before": "2", "after": "3\n"}])

    def facts(self) -> dict[str, StageFacts]:
        """What `dvc.lock` would say of policy and evaluation; the champion is the one of the registry."""
        policy, sft = (content_md5(self.root / folder) for folder in (POLICY_DIR, SFT_DIR))
        made_of = {str(SFT_DIR): sft, "tasks/ppo.py": "c0de"}
        measured = {str(EVALUATE): content_md5(self.root / EVALUATE)}
        reigning = self.at("champion")
        champion = {} if reigning is None else {str(CHAMPION_DIR): self.tags(reigning)[f"dvc.{POLICY_DIR}.md5"]}
        return {
            "policy": StageFacts("policy", made_of, {str(POLICY_DIR): policy}, False),
            "evaluate": StageFacts("evaluate", {str(POLICY_DIR): policy, **champion}, measured, False),
        }

    def all_facts(self) -> dict[str, StageFacts]:
        """The same with the stages that policies are made of."""
        facts = self.facts()
        data, sft = {str(RAW): "da7a.dir"}, {str(SFT_DIR): content_md5(self.root / SFT_DIR)}
        reward = {str(REWARD_DIR): content_md5(self.root / REWARD_DIR)}
        facts["policy"].deps.update(reward)
        return {
            "sft": StageFacts("sft", data, sft, False),
            "reward": StageFacts("reward", data | sft, reward, False),
            **facts,
        }

    def register(self, gate: GateReport = PASSED, key: str = "flow", **settings) -> Registered:
        """Register what lies in the checkout."""
        given = {"facts": self.facts(), "origin": "DPO on preference pairs"} | settings
        config = given.pop("config", RegisterConfig())
        return register(config, client=self.client, run_id=self.run_id, key=key, gate=gate, root=self.root, **given)

    def add(self, content: str, gate: GateReport = PASSED) -> str:
        """Register a policy that is no model but this text, measured against the champion; its number."""
        write_text(self.root / POLICY_DIR / "weights", content)
        self.keep(POLICY_DIR)
        return self.register(gate, config=RegisterConfig(copy_limit=0)).version

    def keep(self, path: Path) -> None:
        """Put a folder into the DVC cache."""
        folder, cache = self.root / path, self.root / ".dvc" / "cache" / "files" / "md5"
        entries = []
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            md5 = content_md5(file)
            (cache / md5[:2]).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, cache / md5[:2] / md5[2:])
            entries.append({"md5": md5, "relpath": file.relative_to(folder).as_posix()})
        whole = content_md5(folder)
        write_text(cache / whole[:2] / whole[2:], json.dumps(entries, sort_keys=True))

    def measure(self, gold: float) -> None:
        """What `evaluate` leaves."""
        write_json(self.root / EVALUATE, {"gold/sft": 0.3, "gold/policy": gold, "gold/policy_low": gold})

    def click(self, version: str, alias: str = "champion") -> None:
        """What a person does in MLflow's UI."""
        self.client.set_registered_model_alias(POLICY_MODEL, alias, version)

    def at(self, alias: str) -> str | None:
        """Number of the version with an alias."""
        try:
            return str(self.client.get_model_version_by_alias(POLICY_MODEL, alias).version)
        except MlflowException:
            return None

    def tags(self, version: str, model: str = POLICY_MODEL) -> dict[str, str]:
        """Of a version."""
        return dict(self.client.get_model_version(model, version).tags)

    def versions(self, model: str = POLICY_MODEL) -> list[str]:
        """Numbers, sorted."""
        return sorted(str(version.version) for version in self.client.search_model_versions(f"name = '{model}'"))

    def clear(self) -> None:
        """Delete all registered models."""
        for model in self.client.search_registered_models():
            assert model.name in (POLICY_MODEL, REWARD_MODEL, SFT_MODEL)
            self.client.delete_registered_model(model.name)
