"""PostgreSQL and an S3 store for tests, each a process of this machine on a free port, gone with the test."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.records.processes import end_group
from tasks.records.reachable import answers
from tasks.service.servers import free_port
from tests.support.checkout import wait_until

REGION = "us-east-1"
START_SECONDS = 500.0
"""How long a loaded machine may take to start a server."""


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server.

    Attributes:
        port: of 127.0.0.1.
        password: of the user `rlhf`.
    """

    port: int
    password: str

    def url(self, driver: str, database: str) -> str:
        return f"postgresql+{driver}://rlhf:{self.password}@127.0.0.1:{self.port}/{database}"


@dataclass(frozen=True)
class Store:
    """A server that speaks S3."""

    url: str

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables by which MLflow, DVC and boto3 find it."""
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}
        return {"MLFLOW_S3_ENDPOINT_URL": self.url, "AWS_ENDPOINT_URL": self.url, **keys}

    def objects(self, bucket: str) -> dict[str, int]:
        """Name to size in bytes."""
        import boto3

        s3 = boto3.client(
            "s3", endpoint_url=self.url, region_name=REGION, aws_access_key_id="test", aws_secret_access_key="test"
        )
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", [])}


@contextmanager
def postgres(*databases: str) -> Iterator[Postgres]:
    """A PostgreSQL server with databases of a user `rlhf`; skips where PostgreSQL is not installed."""
    folder = _postgres_folder()
    # Nobody but its user may enter pytest's own folders, and PostgreSQL refuses to run as root.
    home = Path(tempfile.mkdtemp(prefix="postgres-"))
    user = _other_user(home)
    server = Postgres(free_port(), secrets.token_hex(8))
    (home / "password").write_text(server.password)
    (home / "password").chmod(0o644)
    data, log = home / "data", home / "log"
    initdb = [f"{folder}/initdb", "-D", str(data), "-U", "rlhf", "-A", "scram-sha-256", "-E", "UTF8", "--no-sync"]
    try:
        subprocess.run(
            [*initdb, "--pwfile", str(home / "password")], user=user, cwd=home, check=True, stdout=subprocess.DEVNULL
        )
        with log.open("wb") as output:
            process = subprocess.Popen(
                [f"{folder}/postgres", "-D", data, "-h", "127.0.0.1", "-p", str(server.port), "-k", home],
                user=user, cwd=home, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            ready = [f"{folder}/pg_isready", "-h", "127.0.0.1", "-p", str(server.port), "-q"]
            wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, 60)
            connection = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "rlhf"]
            for name in databases:
                subprocess.run(
                    [f"{folder}/createdb", *connection, name], check=True,
                    env={**os.environ, "PGPASSWORD": server.password},
                )  # fmt: skip
            yield server
        finally:
            end_group(process.pid)
            process.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def s3_store(folder: Path, *buckets: str) -> Iterator[Store]:
    """An S3 store with buckets, made as infra/compose.yaml makes them; skips where moto is not installed."""
    pytest.importorskip("moto.server", reason="moto is not installed: make e2e-infra")
    pytest.importorskip("boto3", reason="boto3 is not installed: make e2e-infra")
    with served([sys.executable, "-m", "moto.server", "-H", "127.0.0.1"], folder / "s3.log", "-p", "/moto-api") as url:
        store = Store(url)
        maker = Path(__file__).resolve().parents[2] / "infra" / "docker" / "make_buckets.py"
        subprocess.run([sys.executable, maker, *buckets], env={**os.environ, **store.settings}, check=True)
        yield store


@contextmanager
def served(
    command: list[str], log: Path, port_flag: str, health: str, environment: dict[str, str] | None = None
) -> Iterator[str]:
    """Run a server on a free port until the block ends; its address."""
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, port_flag, str(port)], cwd=log.parent, env=environment, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(f"{url}{health}") or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, log.read_text()
        yield url
    finally:
        end_group(process.pid)
        process.wait()


def _postgres_folder() -> str:
    """Folder of PostgreSQL's programs. Debian keeps them off the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = str(installed[-1]) if installed else shutil.which("initdb")
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    return str(Path(found).parent)


def _other_user(home: Path) -> str | None:
    """Who runs PostgreSQL in place of root."""
    if os.getuid() != 0:
        return None
    home.chmod(0o755)
    shutil.chown(home, "nobody")
    return "nobody"
