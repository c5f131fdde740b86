"""A device behind a broker and the bridges: tests/support/bridged_device.py, which notes facts for the account.

It forgets acknowledgements and loses its line now and then; its session is kept.
"""

import asyncio
import random
import time
from typing import Any

import paho.mqtt.client as mqtt

from tests.support.bridged_device import BridgedDevice
from trials.faults.account.facts import DeviceFacts, Publication
from trials.faults.devices.device import MOST_OUTGOING, Signals
from trials.faults.plan.characters import Character

_DROP, _CUT = 0.05, 0.02
_TICK_S = 0.1


class DeviceBehindBroker(BridgedDevice):
    """facts: for the account, written on the loop's thread. address: of the broker."""

    def __init__(
        self, character: Character, address: tuple[str, int], signals: Signals, *, seed: int, publish_every_s: float
    ) -> None:
        super().__init__(character.client_id, mqtt5=character.level == 5, drop=_DROP, cut=_CUT, seed=seed)
        self.facts = DeviceFacts(character=character, is_bridged=True)
        self._address = address
        self._signals = signals
        self._pace = random.Random(f"{seed}/{character.client_id}/pace")
        self._publish_every_s = publish_every_s
        self._unanswered: list[tuple[Publication, mqtt.MQTTMessageInfo]] = []

    @property
    def is_connected(self) -> bool:
        return self.connected.is_set()

    @property
    def is_idle(self) -> bool:
        """The broker has answered, and no acknowledgement is forgotten that the next repetition asks for."""
        return not self._unanswered and not self._unacknowledged

    async def run(self) -> None:
        """Runs until the signal to leave."""
        self._loop = asyncio.get_running_loop()
        self.start(*self._address)
        publishes_s = time.time() + self._pace.expovariate(1 / self._publish_every_s)
        try:
            while not self._signals.leave.is_set():
                await asyncio.sleep(_TICK_S)
                self._look_for_answers()
                if time.time() > publishes_s and not self._signals.calm.is_set() and self.is_connected:
                    publishes_s = time.time() + self._pace.expovariate(1 / self._publish_every_s)
                    self._publish()
        finally:
            await asyncio.to_thread(self.stop)

    def on_message(self, client: mqtt.Client, message: mqtt.MQTTMessage) -> None:
        payload = bytes(message.payload)
        before = self.processed[payload]
        super().on_message(client, message)
        self._loop.call_soon_threadsafe(self._note, payload, self.processed[payload] - before, time.time())

    def _note(self, payload: bytes, processed: int, now_s: float) -> None:
        self.facts.first_s.setdefault(payload, now_s)
        self.facts.taken[payload] += processed
        self.facts.handed[payload] += processed

    def _publish(self) -> None:
        if len(self._unanswered) >= MOST_OUTGOING:
            return
        payload = f"up/{self.name}/1/{len(self.facts.publications)}".encode()
        publication = Publication(payload=payload, qos=1, sent_s=time.time())
        self.facts.publications.append(publication)
        self._unanswered.append((publication, self._client.publish(f"devices/{self.name}/up/faults", payload, qos=1)))

    def _look_for_answers(self) -> None:
        waiting: list[Any] = []
        for publication, info in self._unanswered:
            if info.is_published():
                publication.answered = True
            else:
                waiting.append((publication, info))
        self._unanswered = waiting
