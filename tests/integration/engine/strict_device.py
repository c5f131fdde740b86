"""An MQTT 3.1.1 device on a bare socket that checks every packet against the standard and misbehaves on purpose.

Written from the standard alone, without a line of the product's codecs, so that a mistake of theirs is not repeated here.
It notes violations instead of raising, so that a test sees all of them.
"""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 2, 3, 4, 5, 6, 7
SERVER_UNAVAILABLE = 3


@dataclass(slots=True)
class Habits:
    """Probabilities, per packet: of leaving a packet unanswered, and of cutting the connection instead of answering it."""

    swallow: float = 0.0
    cut: float = 0.0


@dataclass(slots=True)
class StrictDevice:
    """A client with a kept session that checks what the broker sends against the standard.

    delivered: QoS 1 messages and QoS 2 messages that the application got, by payload; QoS 2 by both methods that the standard
    allows (at PUBLISH: `taken`, at PUBREL: `delivered`). order: payloads by QoS in the order of their first arrival.
    """

    client_id: str
    habits: Habits = field(default_factory=Habits)
    seed: int = 0
    delivered: Counter[bytes] = field(default_factory=Counter)
    taken: Counter[bytes] = field(default_factory=Counter)
    order: dict[int, list[bytes]] = field(default_factory=lambda: {1: [], 2: []})
    violations: list[str] = field(default_factory=list)
    trace: list[tuple[str, int, bytes, bool]] = field(default_factory=list)
    connections: int = 0
    # what a real device keeps between connections
    awaiting_pubrel: dict[int, bytes] = field(default_factory=dict)
    packet_id_of: dict[bytes, int] = field(default_factory=dict)
    released: set[bytes] = field(default_factory=set)

    async def run(self, host: str, port: int, stop: asyncio.Event) -> None:
        """Keeps the device connected, with a reconnect after each loss, until `stop` is set."""
        dice = random.Random(self.seed)
        while not stop.is_set():
            task = asyncio.create_task(self._connection(host, port, dice))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not task.done():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
                await task
            if not stop.is_set():
                with contextlib.suppress(TimeoutError):  # a device's pause before it dials again
                    await asyncio.wait_for(stop.wait(), 0.2)

    async def _connection(self, host: str, port: int, dice: random.Random) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            name = self.client_id.encode()
            body = b"\x00\x04MQTT\x04\x00\x00\x00" + len(name).to_bytes(2, "big") + name  # kept session, no keep alive
            writer.write(bytes([0x10, len(body)]) + body)
            kind, flags, packet = await read_packet(reader)
            if kind == CONNACK and packet[1] == SERVER_UNAVAILABLE:
                return  # the engine is being restarted: try again later
            if kind != CONNACK or packet[1] != 0:
                self.violations.append(f"first packet is {kind} {packet!r}, not CONNACK 0")
                return
            self.connections += 1
            in_this_connection: dict[int, bytes] = {}
            while True:
                kind, flags, packet = await read_packet(reader)
                if kind == PUBLISH:
                    answer = self._publish(flags, packet, in_this_connection)
                elif kind == PUBREL:
                    answer = self._pubrel(flags, packet)
                else:
                    self.violations.append(f"unexpected packet type {kind}")
                    return
                if answer is None or dice.random() < self.habits.swallow:
                    continue
                if dice.random() < self.habits.cut:
                    return
                writer.write(answer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _publish(self, flags: int, packet: bytes, seen_here: dict[int, bytes]) -> bytes | None:
        qos, dup = flags >> 1 & 3, bool(flags & 8)
        topic_end = 2 + int.from_bytes(packet[:2], "big")
        if qos == 0:
            self.delivered[packet[topic_end:]] += 1
            if dup:
                self.violations.append("DUP at QoS 0 [MQTT-3.3.1-2]")
            return None
        packet_id, payload = int.from_bytes(packet[topic_end : topic_end + 2], "big"), packet[topic_end + 2 :]
        self.trace.append(("PUBLISH", packet_id, payload, dup))
        known_id = self.packet_id_of.get(payload)
        if packet_id == 0:
            self.violations.append("packet id 0 [MQTT-2.3.1-1]")
        if known_id is None:
            self.order[qos].append(payload)
            self.packet_id_of[payload] = packet_id
        else:
            if not dup:
                self.violations.append(f"{payload!r} came again without DUP [MQTT-3.3.1-1]")
            if known_id != packet_id:
                self.violations.append(f"{payload!r} came again under id {packet_id}, first {known_id}")
        if payload in self.released:
            self.violations.append(f"PUBLISH of {payload!r} after its PUBREL [MQTT-4.3.3-2]")
        if seen_here.get(packet_id, payload) != payload and packet_id in self.awaiting_pubrel:
            self.violations.append(f"id {packet_id} given to {payload!r} while in use [MQTT-2.3.1-4]")
        seen_here[packet_id] = payload
        if qos == 1:
            self.delivered[payload] += 1
            return bytes([PUBACK << 4, 2]) + packet_id.to_bytes(2, "big")
        if packet_id not in self.awaiting_pubrel:
            self.taken[payload] += 1
            self.awaiting_pubrel[packet_id] = payload
        elif self.awaiting_pubrel[packet_id] != payload:
            self.violations.append(f"id {packet_id} of an unfinished QoS 2 message given to {payload!r} [MQTT-2.3.1-4]")
        return bytes([PUBREC << 4, 2]) + packet_id.to_bytes(2, "big")

    def _pubrel(self, flags: int, packet: bytes) -> bytes:
        packet_id = int.from_bytes(packet[:2], "big")
        self.trace.append(("PUBREL", packet_id, b"", False))
        if flags != 2:
            self.violations.append(f"PUBREL with flags {flags} [MQTT-3.6.1-1]")
        payload = self.awaiting_pubrel.pop(packet_id, None)
        if payload is not None:
            self.delivered[payload] += 1
            self.released.add(payload)
        return bytes([PUBCOMP << 4, 2]) + packet_id.to_bytes(2, "big")


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Packet type, flags, body."""
    first = (await reader.readexactly(1))[0]
    length = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return first >> 4, first & 15, await reader.readexactly(length)
