"""One `inflight up` for all tests that do not end it, also for those that run in other processes at the same time.

It is started on what 0.1.0 has left behind (test_continues_0_1_0.py). Every test has client ids of its own.
"""

import fcntl
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from inflight.demo.up import UpProcess
from streaming.config.resources import conf_file

DATA_OF_0_1_0 = Path(__file__).parent / "fixtures" / "data-0.1.0.tar.xz"

PROFILES = """
[[profiles]]
clients = "refusing"
[profiles.backoff]
initial = "100ms"
[[profiles]]
clients = "window-2"
max_inflight = 2
retry_interval = "10s"
[[profiles]]
clients = "narrow-*"
max_awaiting_rel = 2
[[profiles]]
clients = "wide-*"
max_inflight = 0
[[profiles]]
clients = "short-*"
max_mqueue_len = 2
[[profiles]]
clients = "brief-*"
session_expiry_interval = "1s"
[[profiles]]
clients = "timer-*"
retry_interval = "1s"
retry_mqtt5 = "timer"
[[profiles]]
clients = "reconnect-*"
retry_interval = "1s"
retry_mqtt5 = "reconnect"
[[profiles]]
clients = "wait-*"
retry_interval = "1s"
retry_mqtt5 = "wait"
[[profiles]]
clients = "broken-*"
delivery_limit = 5
"""


@dataclass(frozen=True)
class SharedUp:
    """Where the shared `inflight up` listens. mqtt: host and port. kafka: bootstrap servers."""

    mqtt: tuple[str, int]
    kafka: str
    data_dir: Path


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedUp]:
    """The first process that asks starts it, and stops it when the last one has ended."""
    own = tmp_path_factory.getbasetemp()
    directory = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    addresses, starting, users = directory / "up.json", directory / "up.starting", directory / "up.users"
    with ExitStack() as use:
        with locked(starting, fcntl.LOCK_EX):
            running = None if addresses.exists() else start_up(tmp_path_factory.mktemp("up"))
            if running is not None:
                addresses.write_text(json.dumps([*running.mqtt, running.kafka, str(running.data_dir)]))
            use.enter_context(locked(users, fcntl.LOCK_SH))
        host, port, kafka, data_dir = json.loads(addresses.read_text())
        yield SharedUp((host, port), kafka, Path(data_dir))
    if running is not None:
        with locked(starting, fcntl.LOCK_EX), locked(users, fcntl.LOCK_EX):
            addresses.unlink()
            running.__exit__(None, None, None)
        assert running.exit_code == 0


@contextmanager
def locked(file: Path, how: int) -> Iterator[None]:
    with file.open("a") as opened:
        fcntl.flock(opened, how)
        yield


def start_up(directory: Path) -> UpProcess:
    """With the delayed retry of conf/policies.toml for lamps, whose delay is ten seconds there and one here."""
    with tarfile.open(DATA_OF_0_1_0) as archive:
        archive.extractall(directory, filter="data")
    policies = conf_file("policies.toml").read_text(encoding="utf-8")
    shorter = policies.replace('message_ttl = "10s"', 'message_ttl = "1s"')
    assert "10s" not in shorter
    configuration = directory / "inflight.toml"
    configuration.write_text(shorter + PROFILES, encoding="utf-8")
    return UpProcess(directory / "data", "--config", str(configuration)).__enter__()
