"""Shares one `inflight up` between all tests that do not end it, even those that run in other processes at the same time.

It is started on what 0.1.0 has left behind (test_continues_written_data.py). Every test has client ids of its own.
"""

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from inflight.demo.up import UpProcess
from streaming.config.resources import conf_file
from tests.integration.up.fixtures.written import WRITTEN
from tests.integration.up.wire_device import Backend
from tests.support.shared import shared

PROFILES = """
[[profiles]]
clients = "window-2"
max_inflight = 2
retry_interval = "10s"
[[profiles]]
clients = "slow-to-answer"
retry_interval = "1s"
[[profiles]]
clients = "narrow-*"
max_awaiting_rel = 2
[[profiles]]
clients = "brief-*"
session_expiry_interval = "1s"
[[profiles]]
clients = "broken-*"
delivery_limit = 5
[[profiles]]
clients = "crashing-*"
crash_limit = 3
[[profiles]]
clients = "paced-*"
max_send_rate = 2
"""

SECRET = "hunter2"
SECRETS = f"""
[kafka]
sasl_password = "{SECRET}"
ssl_key_password = "{SECRET}"
[kafka.options]
"ssl.password" = "{SECRET}"
[engine.spark]
"spark.hadoop.fs.s3a.secret.key" = "{SECRET}"
"spark.hadoop.fs.s3a.encryption.key" = "{SECRET}"
"spark.hadoop.fs.azure.sas.container.account" = "{SECRET}"
"spark.an.option.of.tomorrow" = "{SECRET}"
[bridge]
password = "{SECRET}"
"""


@dataclass(frozen=True)
class SharedUp:
    """Addresses of the shared `inflight up`. mqtt: host and port. kafka: bootstrap servers."""

    mqtt: tuple[str, int]
    kafka: str
    data_dir: Path


@dataclass(frozen=True)
class _Addresses:
    mqtt: tuple[str, int]
    kafka: str
    data_dir: str


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedUp]:
    """Ends with the last module that uses it, because an idle engine takes a third of a processor."""
    with shared(tmp_path_factory, "up", _Addresses, start_up) as found:
        yield SharedUp(found.mqtt, found.kafka, Path(found.data_dir))


@pytest.fixture(scope="module")
def backend(up: SharedUp) -> Iterator[Backend]:
    with Backend(up.kafka) as backend:
        yield backend


def start_up(directory: Path) -> tuple[_Addresses, Callable[[], None]]:
    """Starts it with the delayed retry of conf/policies.toml for lamps; the delay is ten seconds there and one here."""
    with tarfile.open(WRITTEN[0]) as archive:
        archive.extractall(directory, filter="data")
    policies = conf_file("policies.toml").read_text(encoding="utf-8")
    shorter = policies.replace('message_ttl = "10s"', 'message_ttl = "1s"')
    assert "10s" not in shorter
    configuration = directory / "inflight.toml"
    configuration.write_text(shorter + PROFILES + SECRETS, encoding="utf-8")
    # Several processes speak to it at once, so there is always something to do: fewer micro-batches cost all of them less. And
    # other tests run beside it, behind which its engine should not stand back.
    settings = ("metrics.engine_port=0", "metrics.gateway_port=0", "engine.trigger_interval_ms=500", "engine.nice=0")
    overrides = [word for setting in settings for word in ("--set", setting)]
    running = UpProcess(directory / "data", "--config", str(configuration), *overrides).__enter__()

    def stop() -> None:
        running.__exit__(None, None, None)
        assert running.exit_code == 0

    return _Addresses(running.mqtt, running.kafka, str(running.data_dir)), stop
