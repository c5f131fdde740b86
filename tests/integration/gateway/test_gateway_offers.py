"""Offers at a running gateway, on the in-process stand-in for Kafka: who may take them, and when they are all refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sinks.fast_path.router import OfferListener
from sinks.mqtt.access.password_file import HASHER, write_password_file
from sinks.mqtt.settings import GatewaySettings, LoginSettings
from sinks.routing.settings import FastPathSettings
from state.commands import CommandBatch, OfferPublish, OpenFastPath
from state.events import ClientConnected, ConnectionLost
from state.model import Position
from state.records.commands import encode_command_batch
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

CONNACK = "20020000"
CALM = FastPathSettings(pressure_loop_lag_ms=60_000)


def granted(gateway: GatewayUnderTest, client_id: str) -> RawClient:
    device = gateway.socket()
    device.send(connect(payload=text(client_id), keep_alive_s=0))
    device.expect(CONNACK)
    gateway.kafka.wait_for(client_id, ClientConnected)
    wait_until(lambda: gateway.counters.commands_applied, "the engine has accepted")
    gateway.kafka.command(client_id, OpenFastPath, after=Position(0, 4), is_snapshot=True, subscriptions=())
    return device


def offer(gateway: GatewayUnderTest, client_id: str, offset: int, *, to: str = "", **changes: Any) -> None:
    """Sends an offer over the commands topic, as another gateway's router does. to: the client whose connection it names."""
    connected = gateway.kafka.of(to or client_id, ClientConnected)[-1]
    made = OfferPublish(
        connection_id=changes.pop("connection_id", connected.connection_id),
        position=Position(0, offset),
        previous=offset - 1,
        timestamp_ms=1,
        headers=(("mqtt-topic", b"t"), ("mqtt-qos", b"0")),
        payload=b"%d" % offset,
    )
    value = encode_command_batch(CommandBatch(client_id=client_id, commands=(made,)))
    gateway.kafka.deliver(connected.commands_partition, [value])


def test_an_offer_for_anybody_else_is_ignored_and_ends_no_connection() -> None:
    with running_gateway(GatewaySettings(fast_path=CALM)) as gateway, granted(gateway, "d1") as device:
        offer(gateway, "d1", 5, connection_id=99)
        offer(gateway, "d2", 5, to="d1")
        assert device.is_silent()
        assert gateway.counters.offers_ignored == 2
        assert gateway.counters.commands_without_connection == 0
        offer(gateway, "d1", 5)
        device.expect(publish("t", b"5"))
        for client_id in ("d1", "d2"):
            assert gateway.kafka.of(client_id, ConnectionLost) == []


class IdleRouter:
    """A router that reads nothing: a test asks the gateway instead."""

    def start(self, listener: OfferListener) -> None:
        self.listener = listener

    async def close(self, timeout_s: float) -> None:
        pass


def test_a_refused_login_does_not_get_in_the_way_of_a_clients_offers(tmp_path: Path) -> None:
    users, router = tmp_path / "users", IdleRouter()
    write_password_file(users, {"ada": HASHER.hash("right")})
    login = LoginSettings(password_file=str(users), max_failures=0)
    with running_gateway(GatewaySettings(fast_path=CALM, login=login), router=router) as gateway:

        def log_in(device: RawClient, password: str) -> int:
            device.send(connect(flags=0xC2, payload=text("ada") + text("ada") + text(password), keep_alive_s=0))
            return device.packet()[3]

        with gateway.socket() as device, gateway.socket() as guesser:
            assert log_in(device, "right") == 0
            [connected] = gateway.kafka.wait_for("ada", ClientConnected)
            assert log_in(guesser, "wrong") == 4
            guesser.expect_closed()
            here = router.listener.connection_of("ada")
            assert here is not None
            assert here.connection_id == connected.connection_id
        wait_until(lambda: router.listener.connection_of("ada") is None, "it is gone")


def test_a_gateway_that_waits_for_kafka_refuses_offers_for_a_while() -> None:
    settings = replace(CALM, pressure_unconfirmed=2, pressure_hold_ms=300)
    with running_gateway(GatewaySettings(fast_path=settings)) as gateway, granted(gateway, "d1") as device:
        gateway.kafka.holding = lambda record: record.topic.endswith("events")
        for offset in (5, 6, 7):
            offer(gateway, "d1", offset)
        refused = gateway.counters.offers_refused
        offset = 7

        def is_refused() -> bool:
            nonlocal offset
            offset += 1
            offer(gateway, "d1", offset)
            return bool(refused["pressure"])

        wait_until(is_refused, "an offer is refused")
        gateway.kafka.release()
        for number in range(5, offset):
            device.expect(publish("t", b"%d" % number))

        def is_taken_again() -> bool:
            nonlocal offset
            gateway.kafka.command("d1", OpenFastPath, after=Position(0, offset))
            offset += 1
            offer(gateway, "d1", offset)
            return not device.is_silent(0.05)

        wait_until(is_taken_again, "the pressure has passed")


def test_a_clean_start_waits_after_the_engine_has_said_something_else() -> None:
    with running_gateway() as gateway:
        gateway.kafka.accepting.fields = {"max_awaiting_rel": 7, "send_quota": 32}
        with gateway.socket() as device:
            device.send(connect(level=5, payload=text("d1")))
            assert device.packet()[:1] == b"\x20"
            assert device.rest() == bytes.fromhex("e00189")
        with gateway.socket() as device:
            device.send(connect(level=5, payload=text("d1")))
            assert b"\x21\x00\x07" in device.packet()
            device.send("c000")
            device.expect("d000")
