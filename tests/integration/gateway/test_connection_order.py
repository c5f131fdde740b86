"""Tests which connection of a client wins, with frozen gateways, gateways with wrong clocks, and the real session."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinks.kafka.partitioning import partition_of
from sinks.mqtt.settings import GatewaySettings
from state.commands import ForwardPublication, RecordTransition, Transition
from tests.integration.gateway.gateway_fakes import RawClient
from tests.integration.gateway.gateway_process import GatewayProcess, SessionsOnKafka, await_shared, gateway_process
from tests.integration.gateway.own_topics import settings_on
from tests.support.kafka_topics import create_topics
from tests.support.processes import freeze, frozen, thaw
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

pytestmark = pytest.mark.servers

ACCEPTED, PRESENT, BUSY = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00", b"\x20\x02\x00\x03"
KEPT, CLEAN = 0x00, 0x02
MINUTE_S, HOUR_S = 60, 3_600


@pytest.fixture(scope="module")
def settings(kafka: SharedKafka) -> GatewaySettings:
    return settings_on(kafka, "order", connect_timeout_ms=4_000)


@pytest.fixture(scope="module")
def engine(settings: GatewaySettings) -> Iterator[SessionsOnKafka]:
    with SessionsOnKafka(settings) as sessions:
        yield sessions


@pytest.fixture(scope="module")
def gateways(
    settings: GatewaySettings, engine: SessionsOnKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    """Yields two gateways: one to be frozen, and another. The tests have clients of their own."""
    directory = tmp_path_factory.mktemp("gateways")
    with gateway_process(settings, directory / "freezes") as freezes, gateway_process(settings, directory / "other") as other:
        await_shared(freezes, other)
        yield freezes, other


def opened(gateway: GatewayProcess, client_id: str, *, flags: int = KEPT) -> RawClient:
    """CONNECT is sent, and nothing is read."""
    device = gateway.under_test.socket()
    device.send(connect(flags=flags, keep_alive_s=0, payload=text(client_id)))
    return device


def connack(gateway: GatewayProcess, client_id: str) -> tuple[RawClient, bytes]:
    device = opened(gateway, client_id)
    return device, device.packet()


@pytest.mark.promise("gateway-clocks")
def test_no_clock_of_a_gateway_doubles_or_loses_anything(kafka: SharedKafka, tmp_path: Path) -> None:
    """[MQTT-4.3.3-10] From a gateway that is an hour ahead to one that is right, which is then stepped back a day."""
    once = publish("up", b"once", first_byte=0x34, packet_id=7)
    again = publish("up", b"once", first_byte=0x3C, packet_id=7)
    settings = settings_on(kafka, "order", connect_timeout_ms=1_000)  # its own: nothing goes back behind an hour ahead
    with (
        SessionsOnKafka(settings) as engine,
        gateway_process(settings, tmp_path / "ahead", clock_ahead_s=HOUR_S) as ahead,
        gateway_process(settings, tmp_path / "right") as right,
    ):
        await_shared(ahead, right)
        device, answer = connack(ahead, "moving")
        assert answer == ACCEPTED
        device.send(once)
        device.expect("50020007")
        device.socket.close()
        for step, clock_ahead_s in enumerate((0, -24 * HOUR_S)):
            right.set_clock_ahead(clock_ahead_s)
            device, answer = connack(right, "moving")
            assert answer == PRESENT
            device.send(again)
            device.expect("50020007")
            device.send(packet(0x82, b"\x00\x05", text(f"step/{step}"), b"\x01"))
            device.expect("9003000501")
            device.socket.close()
        refused = [row for row in engine.of("moving", RecordTransition) if row.transition is Transition.CONNECTION_REFUSED]
        assert len(refused) == 1, "it was refused once, which the device did not notice"
        session = engine.sessions["moving"]
        wait_until(lambda: len(session.outbound.subscriptions) == 2, "both subscriptions are known")
        assert [forwarded.payload for forwarded in engine.of("moving", ForwardPublication)] == [b"once"]


def test_where_kafka_says_the_time_a_wrong_clock_makes_no_difference(kafka: SharedKafka, tmp_path: Path) -> None:
    create_topics(kafka.bootstrap_servers, "timed.leases", message_timestamp_type="LogAppendTime")
    settings = settings_on(kafka, "timed", leases_topic="timed.leases")
    with (
        SessionsOnKafka(settings) as engine,
        gateway_process(settings, tmp_path / "ahead", clock_ahead_s=HOUR_S) as ahead,
        gateway_process(settings, tmp_path / "right") as right,
    ):
        await_shared(ahead, right)
        for gateway, expected in (ahead, ACCEPTED), (right, PRESENT), (ahead, PRESENT):
            device, answer = connack(gateway, "moving")
            assert answer == expected
            made_s = (engine.sessions["moving"].newest_connection_id >> 10) / 1_000_000
            assert abs(made_s - time.time()) < MINUTE_S
            device.socket.close()
            # Half of what an answer of Kafka took is what a gateway may be wrong by, and this machine is busy.
            wait_until(lambda made_s=made_s: time.time() > made_s + 1, "a later connection is a second later")
        assert rows_of(engine, "moving").count(Transition.CONNECTION_REFUSED) == 0


@pytest.mark.parametrize("device_stays", [False, True], ids=["it has closed its socket", "nobody has told the gateway"])
@pytest.mark.promise("late-connect")
def test_a_connect_that_waited_in_a_frozen_gateway_does_not_win(
    settings: GatewaySettings, engine: SessionsOnKafka, gateways: tuple[GatewayProcess, GatewayProcess], device_stays: bool
) -> None:
    """[MQTT-3.1.4-3] [MQTT-3.1.2-4] The device has connected elsewhere; its old CONNECT asks for a clean start."""
    freezes, other = gateways
    name = f"late-{device_stays}"
    with frozen(freezes.pid):
        late = opened(freezes, name, flags=CLEAN)
        if not device_stays:
            late.socket.close()
        device, answer = connack(other, name)
        assert answer == ACCEPTED
        if device_stays:
            assert device.is_silent(settings.connect_timeout_ms / 1_000 + 0.5)
    if device_stays:
        assert late.packet() == BUSY
    witness, answer = connack(freezes, f"witness-of-{name}")  # it has read everything in its sockets
    assert answer == ACCEPTED
    device.send("c000")
    device.expect("d000")
    rows = [row.transition for row in engine.of(name, RecordTransition)]
    assert rows == [Transition.CONNECTED]
    witness.socket.close()
    device.socket.close()


def test_a_connect_that_was_read_before_the_freeze_is_older(
    engine: SessionsOnKafka, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    """A gateway is frozen and thawed at random moments around a CONNECT with clean start. The later CONNECT always wins."""
    freezes, other = gateways
    for number in range(8):
        client_id = f"d{number}"
        late = opened(freezes, client_id, flags=CLEAN)
        time.sleep(number * 0.0005)  # the moment
        freeze(freezes.pid)
        late.socket.close()
        device = opened(other, client_id)
        answer = device.packet()
        assert answer in (ACCEPTED, PRESENT)
        thaw(freezes.pid)
        opened(freezes, f"witness-{number}").packet()
        device.send("c000")
        device.expect("d000")
        device.socket.close()


@pytest.mark.promise("handed-on-by-frozen-gateway")
def test_a_publication_that_waited_in_a_frozen_gateway_is_handed_on_once(
    engine: SessionsOnKafka, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    """[MQTT-4.3.3-10] The device has finished it elsewhere before its first gateway gets to read it."""
    once = publish("up", b"once", first_byte=0x34, packet_id=7)
    again = publish("up", b"once", first_byte=0x3C, packet_id=7)
    freezes, other = gateways
    device, answer = connack(freezes, "thawed")
    assert answer == ACCEPTED
    with frozen(freezes.pid):
        device.send(once)
        device.socket.close()
        device, answer = connack(other, "thawed")
        assert answer == PRESENT
        device.send(again)
        device.expect("50020007")
        device.send("62020007")
        device.expect("70020007")
    # What was in the socket has been read, or its connection was closed first. Kafka has the witness behind it, if anything.
    witness, answer = connack(freezes, beside("thawed"))
    assert answer == ACCEPTED
    device.send("c000")
    device.expect("d000")
    assert count_of(engine, "thawed") == 1
    assert not engine.sessions["thawed"].inbound.awaiting_rel.entries
    witness.socket.close()
    device.socket.close()


def beside(client_id: str) -> str:
    """A client whose events are in the same partition."""
    names = (f"beside-{number}" for number in itertools.count())
    return next(name for name in names if partition_of(name.encode(), 4) == partition_of(client_id.encode(), 4))


def rows_of(engine: SessionsOnKafka, client_id: str) -> list[Transition]:
    return [row.transition for row in engine.of(client_id, RecordTransition)]


def count_of(engine: SessionsOnKafka, client_id: str) -> int:
    """Publications that were handed on."""
    return len(engine.of(client_id, ForwardPublication))
