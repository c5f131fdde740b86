"""One `inflight up` for all tests that do not end it: the files that use it run in one process (tests/conftest.py).

It is started on what 0.1.0 has left behind (test_continues_0_1_0.py). Every test has client ids of its own.
"""

import tarfile
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """With the delayed retry of conf/policies.toml for lamps, whose delay is ten seconds there and one here."""
    directory = tmp_path_factory.mktemp("up")
    with tarfile.open(DATA_OF_0_1_0) as archive:
        archive.extractall(directory, filter="data")
    policies = conf_file("policies.toml").read_text(encoding="utf-8")
    shorter = policies.replace('message_ttl = "10s"', 'message_ttl = "1s"')
    assert "10s" not in shorter
    configuration = directory / "inflight.toml"
    configuration.write_text(shorter + PROFILES, encoding="utf-8")
    with UpProcess(directory / "data", "--config", str(configuration)) as running:
        yield running
    assert running.exit_code == 0
