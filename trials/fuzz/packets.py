"""Packets of devices, and what the session makes of the events that a connection writes because of them."""

import random
from pathlib import Path

from sinks.mqtt.connection.phases import AWAITING_ACCEPT, Phase
from state.commands import AcceptConnection, CloseConnection, OpenFastPath, SendPublish, SendPubRel
from state.model import Position, QoS
from streaming.engine.operator.cells import EVENTS
from tests.unit.sinks.mqtt.connection.harness import Harness
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text
from trials.fuzz.mutations import mutated, pieces
from trials.fuzz.sessions import CLIENT_ID, FuzzedSession
from trials.fuzz.target import Target

_PROPERTIES = b"\x01\x01" + b"\x03" + text("tü") + b"\x09" + text(b"\xff") + b"\x26" + text("k") + text("v")
_PATIENCE_MS = 3_600_000
"""The time limit: as many small packets as the largest input has take some minutes."""


def valid_packets(level: int) -> list[bytes]:
    """Returns packets that a device may send after CONNECT."""
    v5 = level == 5
    empty = b"\x00" if v5 else b""
    return [
        publish("a/ü", b"\x00\xff", v5=_PROPERTIES if v5 else None),
        publish("a", b"x", first_byte=0x32, packet_id=1, v5=b"" if v5 else None),
        publish("a", b"x", first_byte=0x3C, packet_id=2, v5=b"\x23\x00\x01" if v5 else None),
        bytes.fromhex("40020001"),
        bytes.fromhex("50020001"),
        bytes.fromhex("62020002"),
        bytes.fromhex("70020001"),
        packet(0x82, b"\x00\x05", empty, text("a/#"), b"\x01", text("$share/g/b"), b"\x02"),
        packet(0xA2, b"\x00\x06", empty, text("a/#"), text("b")),
        b"\xc0\x00",
        b"\xe0\x00",
    ]


def greeting(dice: random.Random, level: int, client_id: str = CLIENT_ID) -> bytes:
    """CONNECT, with a will now and then."""
    will = dice.random() < 0.3
    empty = b"\x00" if level == 5 else b""
    payload = text(client_id) + (empty + text("w/t") + text(b"\xff") if will else b"")
    properties = b"\x11\x00\x00\x00\x05\x21\x00\x03" if level == 5 and dice.random() < 0.5 else b""
    return connect(level=level, flags=(0x04 if will else 0x00) | dice.choice((0, 2)), properties=properties, payload=payload)


class Packets(Target):
    """Connects one device after the other, all of the same client. No packet may cause a dead letter or a quarantine."""

    name = "packets"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._session = FuzzedSession()

    def feed(self, dice: random.Random) -> bool:
        level = dice.choice((4, 5))
        known = valid_packets(level)
        hello, was_connected = greeting(dice, level), False
        device = Harness(knows_settings=dice.random() < 0.5)
        device.send(hello if dice.random() < 0.8 else mutated(dice, hello, known))
        for _ in range(dice.randint(1, 6)):
            if device.connection.phase in AWAITING_ACCEPT:
                device.command(AcceptConnection, send_quota=2, max_awaiting_rel=2)
            was_connected |= device.connection.phase is Phase.CONNECTED
            self._command(dice, device)
            said = dice.choice(known)
            for piece in pieces(dice, said if dice.random() < 0.4 else mutated(dice, said, known)):
                device.send(piece)
            device.pass_ms(dice.choice((0, 0, 1, 3_000)))
        device.feed("peer_closed")
        device.settle()
        until_ms = device.now_ms + _PATIENCE_MS
        while not device.connection.is_closed:  # packets that wait because of the packet rate are handled first
            assert device.effects.deadline_ms is not None, "nothing will happen any more"
            assert device.now_ms < until_ms
            device.pass_ms(1_000)
        assert not device.waiting
        for record in device.event_records:
            self._session.tell(EVENTS, record)
        answer = self._session.activate()
        dead = [record for record in answer if record.topic.endswith("dead-letters")]
        assert not dead, dead
        return was_connected

    def _command(self, dice: random.Random, device: Harness) -> None:
        match dice.randrange(8):
            case 0:
                device.command(SendPublish, packet_id=dice.choice((1, 2)), topic="t", payload=b"p", qos=QoS(dice.choice((1, 2))))
            case 1:
                device.command(SendPubRel, packet_id=dice.choice((1, 2)))
            case 2:
                device.command(OpenFastPath, after=Position(0, dice.randrange(9)))
            case 3 if dice.random() < 0.2:
                device.command(CloseConnection, reason_code=0x8E)
            case _:
                pass
