"""The bridge and a Mosquitto that asks for more than a socket: TLS under an authority of its own, a password, a certificate."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sinks.bridge.settings import Acknowledgement, PresenceSource
from state.commands import SendPublish
from state.events import ClientConnected, PubAckReceived
from state.model import QoS
from tests.integration.bridge.bridge_fakes import BridgeUnderTest, running_bridge
from tests.integration.bridge.certificates import Authority
from tests.support.mosquitto import Mosquitto, needs_mosquitto
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, needs_mosquitto]

AS_ROOT = "user root"  # else Mosquitto, started as root, gives its rights up and cannot read the test's files
ALWAYS_THERE = {"acknowledgement": Acknowledgement.BROKER, "presence": PresenceSource.ALWAYS, "clients": ("d1",)}


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    for tool in ("openssl", "mosquitto_passwd"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} was not found: install openssl and mosquitto")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def broker(directory: Path, authority: Authority, *, extra: str = "", host: str = "127.0.0.1") -> Iterator[Mosquitto]:
    """Starts a broker with TLS, under a certificate for `host`."""
    own = authority.sign(f"broker-{host}", host=host)
    lines = f"certfile {own.cert}\nkeyfile {own.key}\n{AS_ROOT}\n{extra}"
    with Mosquitto(directory / "broker", anonymous="password_file" not in extra, extra=lines) as mosquitto:
        yield mosquitto


def deliver_one(bridge: BridgeUnderTest) -> None:
    bridge.kafka.wait_for("d1", ClientConnected)
    bridge.kafka.command("d1", SendPublish, packet_id=1, topic="t", payload=b"p", qos=QoS.AT_LEAST_ONCE, message_id="m")
    bridge.kafka.wait_for("d1", PubAckReceived)


def assert_stays_outside(mosquitto: Mosquitto, **settings: Any) -> None:
    with running_bridge(port=mosquitto.port, ready=False, **ALWAYS_THERE, **settings) as bridge:
        wait_until(lambda: bridge.counters.connections_refused >= 3, "refusals, one after the other")
        assert bridge.counters.broker_connections == 0
        assert not bridge.ready.is_set()
        assert bridge.kafka.of("d1", ClientConnected) == []


@pytest.mark.parametrize("version", [4, 5])
def test_a_broker_under_an_authority_of_its_own_with_a_password(tmp_path: Path, authority: Authority, version: int) -> None:
    passwords = tmp_path / "passwords"
    command = ["mosquitto_passwd", "-b", "-c", str(passwords), "bridge", "secret"]
    subprocess.run(command, check=True, timeout=30, capture_output=True)
    settings = {"mqtt_version": version, "tls": True, "tls_cafile": authority.own.cert, "username": "bridge"}
    with broker(tmp_path, authority, extra=f"password_file {passwords}") as mosquitto:
        with running_bridge(port=mosquitto.port, password="secret", **ALWAYS_THERE, **settings) as bridge:
            deliver_one(bridge)
        assert_stays_outside(mosquitto, password="wrong", **settings)


def test_a_broker_under_an_authority_that_was_not_named_is_not_trusted(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    another = Authority(tmp_path / "another")
    with broker(tmp_path, authority) as mosquitto:
        assert_stays_outside(mosquitto, tls=True, tls_cafile=another.own.cert)
        assert "check bridge.tls_cafile" in capsys.readouterr().out
        assert_stays_outside(mosquitto, tls=True)  # nor do the system's authorities know it


def test_a_broker_with_the_certificate_of_another_host_is_not_trusted(tmp_path: Path, authority: Authority) -> None:
    with broker(tmp_path, authority, host="127.0.0.2") as mosquitto:
        assert_stays_outside(mosquitto, tls=True, tls_cafile=authority.own.cert)


def test_a_bridge_shows_its_own_certificate_where_the_broker_wants_one(tmp_path: Path, authority: Authority) -> None:
    own = authority.sign("bridge-1")
    wants = f"cafile {authority.own.cert}\nrequire_certificate true\nuse_identity_as_username true"
    settings = {"tls": True, "tls_cafile": authority.own.cert}
    with broker(tmp_path, authority, extra=wants) as mosquitto:
        with running_bridge(
            port=mosquitto.port, tls_certfile=own.cert, tls_keyfile=own.key, **ALWAYS_THERE, **settings
        ) as bridge:
            deliver_one(bridge)
        assert_stays_outside(mosquitto, **settings)


def test_a_broker_with_tls_is_not_spoken_to_in_the_clear(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(tmp_path, authority) as mosquitto:
        assert_stays_outside(mosquitto)
        assert "whether it wants bridge.tls" in capsys.readouterr().out
