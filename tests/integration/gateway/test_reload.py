"""A gateway whose configuration file changes, on real sockets, with an in-process stand-in for Kafka (gateway_fakes.py)."""

from pathlib import Path

import pytest

from inflight.cli.options import watch_configuration
from sinks.mqtt.access.password_file import HASHER, write_password_file
from streaming.config.settings import gateway_settings
from streaming.reload.gateway import GatewayReload
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text


class Running:
    """A gateway and its file."""

    def __init__(self, path: Path, content: str = "[metrics]") -> None:
        self.path = path
        self.write(content)
        watch = watch_configuration(path, None)
        settings = watch.load()
        self.context = running_gateway(
            gateway_settings(settings), configuration=GatewayReload(settings, new=watch.changed, ask=watch.ask)
        )

    def write(self, content: str) -> None:
        self.path.write_text(content, encoding="utf-8")


def answer_to(device: RawClient, name: str) -> int:
    device.send(connect(level=5, payload=text(name)))
    return device.packet()[3]


def connack(gateway: GatewayUnderTest, name: str) -> int:
    with gateway.socket() as device:
        return answer_to(device, name)


def may_publish(device: RawClient, topic: str) -> bool:
    device.send(publish(topic, b"p", first_byte=0x32, packet_id=1, v5=b""))
    return device.packet()[4:5] != b"\x87"


@pytest.mark.promise("gateway-reload")
def test_a_new_rule_holds_for_new_connections_and_nobody_is_dropped(tmp_path: Path) -> None:
    running = Running(tmp_path / "inflight.toml")
    with running.context as gateway, gateway.socket() as old:
        assert answer_to(old, "old") == 0
        running.write('[[rules]]\nusers = [""]\nclient_ids = ["*"]\npublish = ["allowed/#"]\n')

        def is_refused() -> bool:
            with gateway.socket() as device:
                assert answer_to(device, "new") == 0
                return not may_publish(device, "other")

        wait_until(is_refused, "the rule holds")
        assert may_publish(old, "other"), "it keeps what it was granted"


def test_after_a_change_of_session_settings_the_engine_has_the_first_word(tmp_path: Path) -> None:
    """The engine reloads its settings before or after the gateway. A CONNACK with other values would cost the connection."""
    running = Running(tmp_path / "inflight.toml")
    with running.context as gateway:
        gateway.kafka.accepting.fields = None

        def answers_at_once() -> bool:
            with gateway.socket() as device:
                device.send(connect(level=5, payload=text("clean")))
                return not device.is_silent(0.3)

        assert connack(gateway, "clean") == 0, "the engine is not waited for"
        running.write("[session]\nmax_awaiting_rel = 9\n")
        wait_until(lambda: not answers_at_once(), "the engine is waited for")


@pytest.mark.promise("gateway-reload")
def test_a_wrong_file_changes_nothing_and_sighup_reads_a_mended_one(tmp_path: Path) -> None:
    users = tmp_path / "users"
    running = Running(tmp_path / "inflight.toml")
    with running.context as gateway:
        running.write(f'[gateway.login]\npassword_file = "{users}"\n')  # there is no such file
        gateway.reload()
        gateway.reload()
        wait_until(lambda: gateway.health.not_ready() == (), "it goes on")
        assert connack(gateway, "anybody") == 0
        write_password_file(users, {"ada": HASHER.hash("right")})

        def is_asked() -> bool:
            gateway.reload()
            return connack(gateway, "anybody") == 0x86

        wait_until(is_asked, "a login is asked for")
