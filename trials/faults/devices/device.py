"""A device that changes between two gateways: cuts its connection, disconnects, waits, starts clean, gives up on silence.

Its own dice (seed and client id) make its decisions, so that two runs with one seed have the same devices. The times of the
packets depend on the run.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, text
from trials.faults.account.facts import FROM_DEVICE, Attempt, DeviceFacts, End, Publication
from trials.faults.devices.device_session import CONNACK, DISCONNECT, DeviceSession
from trials.faults.plan.characters import EXPIRY_S, Character, Keeping

Addresses = Mapping[str, tuple[str, int]]

SERVER_BUSY = b"\x89"
MOST_OUTGOING = 10
_CONNECT_S = 3.0
_CONNACK_S = 15.0
_PING_S = 1.5
_TICK_S = 0.1
_DRAIN_S = 2.0
"""Seconds in which a device reads what has come while it did not read."""
_STAY_S = 12.0
_PAUSE_S = 0.8
_SHORT_PAUSE_S = 0.3
_AWAY_S = (30.0, 45.0)
"""Long enough for the account to know that the device is not online (trials/faults/account/account_of_presence.py)."""


class Wire(asyncio.Protocol):
    """A device's socket: whole packets in, bytes out."""

    def __init__(self, on_packet: Callable[[int, int, bytes], None]) -> None:
        self.closed = asyncio.Event()
        self._on_packet = on_packet
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        buffer, start = self._buffer + data, 0
        while (found := _frame(buffer, start)) is not None and not self.closed.is_set():
            body, end = found
            self._on_packet(buffer[start] >> 4, buffer[start] & 15, buffer[body:end])
            start = end
        self._buffer = buffer[start:]

    def write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def stop_reading(self, seconds: float) -> None:
        """Leaves what comes in the network for so long."""
        if self._transport is not None and not self.closed.is_set():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(seconds, self._read_again)

    def _read_again(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def leave(self) -> None:
        """Sends what was written, then closes the socket."""
        self.closed.set()
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Aborts the connection as a power failure does: nothing is sent, and nothing that comes is read."""
        self.closed.set()
        if self._transport is not None:
            self._transport.abort()


def _frame(buffer: bytes, start: int) -> tuple[int, int] | None:
    """Begin and end of the body of the packet at `start`; None = it is not complete."""
    length = shift = 0
    position = start + 1
    while position < len(buffer):
        byte = buffer[position]
        length |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return (position, position + length) if position + length <= len(buffer) else None
        shift += 7
    return None


@dataclass(kw_only=True)
class Signals:
    """Signals to all devices. calm: come back, stay, publish nothing. leave: go for good."""

    calm: asyncio.Event = field(default_factory=asyncio.Event)
    leave: asyncio.Event = field(default_factory=asyncio.Event)


def says_nothing_of_the_session(kind: int, body: bytes) -> bool:
    """The goodbye of a gateway that has lost its lease, or a partition: it may have stood still, and be the last one to know. Its
    session may have ended before."""
    return kind == DISCONNECT and body[:1] == SERVER_BUSY


class Device:
    """facts: for the account. publish_every_s: mean time between its publications while it is connected."""

    def __init__(
        self, character: Character, addresses: Addresses, signals: Signals, *, seed: int, publish_every_s: float
    ) -> None:
        self.facts = DeviceFacts(character=character)
        self.is_connected = False
        self._character = character
        self.session = self._new_session(seed)
        self._addresses = addresses
        self._signals = signals
        self._dice = random.Random(f"{seed}/{character.client_id}")
        self._publish_every_s = publish_every_s
        self._gateway = self._dice.choice(sorted(addresses))
        self._heard_s: float | None = None
        """The last time when the session surely existed, None = it is new or has ended."""
        self._unanswered = False
        """A CONNECT since then may have begun a new session."""
        self._starts_clean = False
        """True while the state of the existing session is unknown, until a clean start is answered."""
        self._deaf_since_s = self._deaf_until_s = 0.0
        """The last time in which it did not read; 0 = it has always read."""

    def _new_session(self, seed: int) -> DeviceSession:
        return DeviceSession(facts=self.facts)

    @property
    def is_idle(self) -> bool:
        return self.session.is_idle

    async def run(self) -> None:
        """Runs until the signal to leave."""
        while not self._signals.leave.is_set():
            if not await self._connection():
                self._gateway = self._dice.choice(sorted(self._addresses))
            await self._pause(self._pause_s())

    def _pause_s(self) -> float:
        if self._signals.calm.is_set():
            return _SHORT_PAUSE_S
        luck = self._dice.random()
        if self._character.keeping is Keeping.SHORT and luck < 0.25:
            return self._dice.uniform(*(_AWAY_S if luck < 0.05 else (0.5 * EXPIRY_S, 4 * EXPIRY_S)))
        return self._dice.expovariate(1 / _PAUSE_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._signals.leave.wait(), seconds)

    # --- one connection -----------------------------------------------------------------------------------------------------

    async def _connection(self) -> bool:
        """Runs one connection. Returns False if the gateway was not there, or did not accept the device."""
        attempt: Attempt | None = None

        def arrived(kind: int, flags: int, body: bytes) -> None:
            assert attempt is not None
            if not says_nothing_of_the_session(kind, body):
                attempt.heard_s = self._sent_s(time.time(), attempt)
            if kind == CONNACK and attempt.accepted_s is None:
                self._answered(attempt, wire, body)
            elif attempt.accepted_s is None:
                self.facts.oddities.append((f"packet type {kind} before CONNACK", b""))
            else:
                wire.write(self.session.receive(kind, flags, body, time.time()))

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, wire = await loop.create_connection(lambda: Wire(arrived), *self._addresses[self._gateway])
        except (OSError, TimeoutError):
            return False
        attempt = self._attempt()
        self.facts.attempts.append(attempt)
        wire.write(self._connect_packet(attempt))
        try:
            await self._stay(attempt, wire)
        finally:
            self.is_connected = False
            wire.cut()
            attempt.ended_s = time.time()
            if attempt.accepted_s is not None:
                self._heard_s = attempt.heard_s
            else:
                self._unanswered = True
        return attempt.accepted_s is not None

    def _sent_s(self, now_s: float, attempt: Attempt) -> float:
        """Returns when the gateway may have sent what is read now: what has waited in the network may be old."""
        is_old = self._deaf_since_s <= now_s < self._deaf_until_s + _DRAIN_S
        return max(attempt.heard_s, self._deaf_since_s) if is_old and attempt.began_s < self._deaf_since_s else now_s

    def _attempt(self) -> Attempt:
        character, now_s = self._character, time.time()
        chosen = character.keeping is Keeping.SHORT and self._dice.random() < 0.1
        clean = character.keeping is Keeping.CLEAN or chosen or self._starts_clean
        if clean:  # [MQTT-3.1.2-4] What the device knew is void as soon as it has said so, answered or not.
            self.session.forget()
            self._heard_s, self._starts_clean = None, True
        will = f"will/{character.client_id}/{len(self.facts.attempts)}".encode()
        return Attempt(gateway=self._gateway, will=will, clean=clean, began_s=now_s, heard_s=now_s, absent_since_s=self._heard_s)

    def _connect_packet(self, attempt: Attempt) -> bytes:
        character = self._character
        properties = b"" if character.expiry_s is None else b"\x11" + character.expiry_s.to_bytes(4, "big")
        delay = b"\x18" + character.will_delay_s.to_bytes(4, "big") if character.will_delay_s else b""
        will_properties = bytes((len(delay),)) + delay if character.level == 5 else b""
        payload = text(character.client_id) + will_properties + text("up/will") + text(attempt.will)
        return connect(
            level=character.level,
            flags=0x04 | (0x02 if attempt.clean else 0),
            keep_alive_s=0 if character.patience_s > 10 else int(character.patience_s),
            properties=properties,
            payload=payload,
        )

    def _answered(self, attempt: Attempt, wire: Wire, body: bytes) -> None:
        if body[1]:
            attempt.end = End.REFUSED
            wire.cut()
            return
        attempt.accepted_s, attempt.session_present = attempt.heard_s, bool(body[0])
        attempt.end = End.CLOSED  # unless we are quicker
        self.is_connected, self._starts_clean = True, False
        if not attempt.session_present:
            self.session.forget()
        elif self._may_be_another_session(attempt):
            self._starts_clean, attempt.end = True, End.CUT
            wire.cut()
        wire.write(self.session.resume())
        self._unanswered = False

    def _may_be_another_session(self, attempt: Attempt) -> bool:
        """The old one may have expired, and a CONNECT whose answer was lost may have begun the present one."""
        expiry_s, since_s = self._character.expiry_s, attempt.absent_since_s
        assert attempt.accepted_s is not None
        return self._unanswered and None not in (expiry_s, since_s) and attempt.accepted_s - since_s > expiry_s

    async def _stay(self, attempt: Attempt, wire: Wire) -> None:
        """Stays connected until one side ends the connection."""
        leaves_s = time.time() + self._dice.expovariate(1 / _STAY_S)
        publishes_s = time.time() + self._dice.expovariate(1 / self._publish_every_s)
        pinged_s = 0.0
        while not wire.closed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wire.closed.wait(), _TICK_S)
            now_s = time.time()
            if wire.closed.is_set():
                break
            patience_s = max(self._character.patience_s, _CONNACK_S if attempt.accepted_s is None else 0.0)
            if now_s - max(attempt.heard_s, self._deaf_until_s + _DRAIN_S) > patience_s:
                self._go(attempt, wire, End.CUT)
            elif attempt.accepted_s is None:
                continue
            elif self._signals.leave.is_set() or (now_s > leaves_s and not self._signals.calm.is_set()):
                self._go(attempt, wire, self._way_to_go())
            elif now_s - max(attempt.heard_s, pinged_s) > _PING_S:
                pinged_s = now_s
                wire.write(packet(0xC0))
            if now_s > publishes_s and not self._signals.calm.is_set() and self.is_connected:
                publishes_s = now_s + self._dice.expovariate(1 / self._publish_every_s)
                self._publish(wire)
            if self.is_connected and not self._signals.calm.is_set():
                self._change(wire, now_s)

    def _change(self, wire: Wire, now_s: float) -> None:
        """Does what a device does now and then, beside publishing."""

    def _way_to_go(self) -> End:
        luck = self._dice.random()
        if luck < 0.45:
            return End.CUT
        return End.WITH_WILL if luck < 0.6 and self._character.level == 5 else End.GOODBYE

    @staticmethod
    def _go(attempt: Attempt, wire: Wire, end: End) -> None:
        if attempt.accepted_s is not None:
            attempt.end = end
        if end is End.GOODBYE:
            wire.write(packet(0xE0))
        elif end is End.WITH_WILL:
            wire.write(packet(0xE0, b"\x04"))
        if end is End.CUT:
            wire.cut()
        else:
            wire.leave()

    def _publish(self, wire: Wire) -> None:
        if len(self.session.outgoing) >= MOST_OUTGOING or wire.closed.is_set():
            return
        number = len(self.facts.publications)
        topic, qos = self._topic_and_qos()
        payload = FROM_DEVICE + f"{self._character.client_id}/{qos}/{number}".encode()
        wire.write(self.session.publish(Publication(payload=payload, qos=qos, topic=topic, sent_s=time.time())))

    def _topic_and_qos(self) -> tuple[str, int]:
        return "up/faults", 1 + self._dice.randrange(2)
