"""Offers to a connection with a grant, and what becomes of them."""

from typing import Any

from sinks.fast_path.offering import FastPathState
from state.commands import OfferPublish, OpenFastPath, SendPublish
from state.events import FastSent
from state.model import Position, QoS
from tests.unit.sinks.mqtt.connection.harness import Harness, connected
from tests.unit.sinks.mqtt.mqtt_bytes import publish

FIRST, SECOND = 32_768, 32_769
WALL_MS = 1_700_000_000_000
TOPIC = ("mqtt-topic", b"t")


def granted(level: int = 4, *, after: int = 4, partition: int = 2, **settings: Any) -> Harness:
    """A connection whose grant begins behind offset 4; two slots."""
    harness = connected(level, **settings)
    grant(harness, after, partition=partition, is_snapshot=True, subscriptions=())
    return harness


def grant(harness: Harness, after: int, *, partition: int = 2, **fields: Any) -> bytes:
    return harness.command(OpenFastPath, after=Position(partition, after), **fields)


def offer(
    harness: Harness,
    offset: int,
    *headers: tuple[str, bytes],
    previous: int | None = None,
    payload: bytes = b"p",
    qos: int = 1,
    partition: int = 2,
    age_ms: int = 0,
    under_pressure: bool = False,
    recipient: bytes | None = None,
) -> bytes:
    given = OfferPublish(
        connection_id=77,
        position=Position(partition, offset),
        previous=offset - 1 if previous is None else previous,
        timestamp_ms=WALL_MS - age_ms,
        headers=(TOPIC, ("mqtt-qos", b"%d" % qos), *headers),
        payload=payload,
        recipient=recipient,
    )
    counters, path = harness.counters, harness.connection.fast_path
    ignored, taken = counters.offers_ignored, counters.offers_taken
    harness.feed("offer", [given], under_pressure, WALL_MS)
    # A router does not always make an offer to a path that is not open, so it must be right about what would become of it.
    if path is FastPathState.CLOSED:
        assert counters.offers_ignored == ignored + 1
    if path is FastPathState.HOLDING:
        assert counters.offers_taken == taken
    return harness.settle()


def sent(packet_id: int, payload: bytes = b"p", *, qos: int = 1, v5: bytes | None = None) -> bytes:
    return publish("t", payload, first_byte=0x30 | qos << 1, packet_id=packet_id if qos else None, v5=v5)


def refusals(harness: Harness) -> dict[str, int]:
    return dict(harness.counters.offers_refused)


def holds(harness: Harness) -> dict[str, int]:
    return dict(harness.counters.offers_held)


def fast_sents(harness: Harness) -> list[FastSent]:
    return [event for event in harness.events if isinstance(event, FastSent)]


def send_slow(harness: Harness, packet_id: int, *, offset: int, qos: int = 1, dup: bool = False) -> bytes:
    return harness.command(
        SendPublish, packet_id=packet_id, topic="t", payload=b"s", qos=QoS(qos), dup=dup, position=Position(2, offset)
    )
