"""Devices that stay, and connect to the next gateway as soon as their connection ends; and what they have seen."""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, text
from trials.faults.account.facts import DeviceFacts, Publication
from trials.faults.devices.device import Wire
from trials.faults.devices.device_session import CONNACK, DeviceSession
from trials.faults.plan.characters import Character, Keeping

_CONNECT_S = 10.0
_CLEAN = 0x02
_WILL = 0x04


@dataclass(kw_only=True)
class Waits:
    """reconnects: seconds from the end of each connection to the next CONNACK."""

    reconnects: list[float] = field(default_factory=list)
    goodbyes: int = 0
    """DISCONNECT packets with 0x8B."""


class ReconnectingDevice:
    """number: says with which version and at which gateway it begins. keeps: its session."""

    def __init__(
        self, client_id: str, number: int, addresses: Sequence[tuple[str, int]], waits: Waits, *, keeps: bool = True
    ) -> None:
        character = Character(
            client_id=client_id,
            level=5 if number // 2 % 2 else 4,  # both, at each gateway
            keeping=Keeping.KEPT if keeps else Keeping.CLEAN,
            expiry_s=3_600 if keeps else 0,
            will_delay_s=0,
            patience_s=math.inf,
        )
        self.facts = DeviceFacts(character=character)
        self.session = DeviceSession(facts=self.facts)
        self.connected = asyncio.Event()
        self._addresses = addresses
        self._waits = waits
        self._dice = random.Random(number)
        self._next = number
        self._wire: Wire | None = None

    async def run(self) -> None:
        """Connects again and again until cancelled; then sends DISCONNECT."""
        lost_s: float | None = None
        try:
            while True:
                address = self._addresses[self._next % len(self._addresses)]
                if await self._connect(address):
                    if lost_s is not None:
                        self._waits.reconnects.append(time.time() - lost_s)
                    assert self._wire is not None
                    await self._wire.closed.wait()
                    lost_s = time.time()
                self.connected.clear()
                self._next += 1
                await asyncio.sleep(self._dice.uniform(0.0, 0.2))
        finally:
            if self._wire is not None:
                self._wire.write(packet(0xE0))
                self._wire.leave()

    def publish(self, payload: bytes, qos: int) -> None:
        """Publishes on the current connection, or on the next one if there is none."""
        data = self.session.publish(Publication(payload=payload, qos=qos, sent_s=time.time()))
        if self._wire is not None and self.connected.is_set():
            self._wire.write(data)

    async def _connect(self, address: tuple[str, int]) -> bool:
        """Returns True if the gateway accepted the connection."""

        def arrived(kind: int, flags: int, body: bytes) -> None:
            if kind == CONNACK:
                answered.set_result(body[1] == 0)
                if body[1] == 0:
                    self.connected.set()
                    wire.write(self.session.resume())
            else:
                self._waits.goodbyes += kind == 14 and body[:1] == b"\x8b"
                wire.write(self.session.receive(kind, flags, body, time.time()))

        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bool] = loop.create_future()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT_S):
                _, wire = await loop.create_connection(lambda: Wire(arrived), *address)
                self._wire = wire
                wire.write(self._hello())
                closed = asyncio.ensure_future(wire.closed.wait())
                await asyncio.wait({answered, closed}, return_when=asyncio.FIRST_COMPLETED)
                closed.cancel()
        if answered.done() and answered.result():
            return True
        if self._wire is not None:
            self._wire.leave()  # it gives up: a connection that it abandons must not stay open
        return False

    def _hello(self) -> bytes:
        character = self.facts.character
        client_id, v5 = character.client_id, character.level == 5
        will_properties = b"\x00" if v5 else b""
        return connect(
            level=character.level,
            flags=_WILL | (_CLEAN if character.keeping is Keeping.CLEAN else 0),
            keep_alive_s=0,
            properties=b"\x11" + (character.expiry_s or 0).to_bytes(4, "big") if v5 else b"",
            payload=text(client_id) + will_properties + text("up/will") + text(f"will/{client_id}"),
        )
