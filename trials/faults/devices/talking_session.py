"""The session of a device that talks to others: publications to topics, subscriptions, and messages routed to it.

Messages of the backend name the device, and are the business of `DeviceSession`.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.unit.sinks.mqtt.mqtt_bytes import packet, text
from trials.faults.account.facts import FROM_DEVICE, Period, RoutedArrival
from trials.faults.devices.device_session import PUBACK, PUBREC, DeviceSession, acknowledgement
from trials.faults.plan.talk import Asked

SUBACK, UNSUBACK = 9, 11
_ERROR = 0x80


@dataclass(slots=True, kw_only=True)
class TalkingSession(DeviceSession):
    """wanted: subscriptions that it asks for or has. periods: what it has or may have, by filter. asked: what SUBACK and UNSUBACK
    will answer, by packet id. seen: routed messages of this session.
    """

    wanted: dict[str, Asked] = field(default_factory=dict)
    periods: dict[str, Period] = field(default_factory=dict)
    asked: dict[int, Period] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        # Slots make another class of this one, of which super() without arguments knows nothing.
        return super(TalkingSession, self).is_idle and not any(self._is_unsettled(period) for period in self.periods.values())

    def forget(self) -> None:
        super(TalkingSession, self).forget()
        self.periods.clear()
        self.asked.clear()
        self.seen.clear()
        self.facts.epoch += 1

    def resume(self) -> bytes:
        """Asks again for what was not answered: the connection before may have ended first."""
        self.asked.clear()
        return super(TalkingSession, self).resume() + self.ask()

    # --- subscriptions ------------------------------------------------------------------------------------------------------

    def change(self, asked: Asked) -> bytes:
        """Subscribes, or unsubscribes if it has subscribed; nothing before what was asked is answered. Returns the packets."""
        if asked.topic_filter not in self.wanted:
            self.wanted[asked.topic_filter] = asked
        elif (period := self.periods.get(asked.topic_filter)) is not None and period.granted_s is not None:
            del self.wanted[asked.topic_filter]
        return self.ask()

    def ask(self) -> bytes:
        """Returns SUBSCRIBE and UNSUBSCRIBE for what is wanted and was not asked for on this connection."""
        for topic_filter, asked in self.wanted.items():
            if topic_filter not in self.periods:
                period = Period(topic_filter=topic_filter, qos=asked.qos, epoch=self.facts.epoch, asked_s=time.time())
                self.periods[topic_filter] = period
                self.facts.periods.append(period)
        return b"".join(self._ask())

    def _ask(self) -> Iterator[bytes]:
        waiting = {id(period) for period in self.asked.values()}
        for topic_filter, period in self.periods.items():
            if id(period) in waiting:
                continue
            if topic_filter not in self.wanted and period.granted_s is not None:
                period.leaving_s = min(period.leaving_s, time.time())
                yield self._packet(period, 0xA2, text(topic_filter))
            elif period.granted_s is None:
                yield self._packet(period, 0x82, text(topic_filter), bytes((period.qos,)))

    def _packet(self, period: Period, first_byte: int, *parts: bytes) -> bytes:
        packet_id = self._next_packet_id()
        self.asked[packet_id] = period
        properties = b"\x00" if self.facts.character.level == 5 else b""
        return packet(first_byte, packet_id.to_bytes(2, "big"), properties, *parts)

    def _is_unsettled(self, period: Period) -> bool:
        return period.granted_s is None or period.topic_filter not in self.wanted

    def receive(self, kind: int, flags: int, body: bytes, now_s: float) -> bytes:
        if kind not in (SUBACK, UNSUBACK):
            return super(TalkingSession, self).receive(kind, flags, body, now_s)
        period = self.asked.pop(int.from_bytes(body[:2], "big"), None)
        is_leaving = period is not None and period.granted_s is not None
        if period is None or is_leaving != (kind == UNSUBACK):
            self._odd(f"packet type {kind} answers nothing")
        elif (kind == SUBACK or self.facts.character.level == 5) and body[-1] >= _ERROR:
            self._odd(f"packet type {kind} with reason code 0x{body[-1]:02X} for {period.topic_filter}")
            return b""
        elif kind == SUBACK:
            period.granted_s = now_s
            if body[-1] != period.qos:
                self._odd(f"QoS {body[-1]} was granted for {period.topic_filter}, not {period.qos}")
        else:
            period.ended_s = now_s
            del self.periods[period.topic_filter]
        return self.ask()

    # --- routed messages ----------------------------------------------------------------------------------------------------

    def _arrived(self, packet_id: int, topic: str, payload: bytes, flags: int, now_s: float) -> bytes:
        if not payload.startswith(FROM_DEVICE):
            return super(TalkingSession, self)._arrived(packet_id, topic, payload, flags, now_s)
        qos, dup = flags >> 1 & 3, bool(flags & 8)
        if flags & 1:
            self._odd("RETAIN on a message that was not retained [MQTT-3.3.1-9]", payload)
        is_new = self._is_new(packet_id, payload) if qos == 2 else not (dup and payload in self.seen)
        self.seen.add(payload)
        self.facts.routed.append(
            RoutedArrival(payload=payload, topic=topic, qos=qos, is_new=is_new, epoch=self.facts.epoch, time_s=now_s)
        )
        return acknowledgement(PUBACK if qos == 1 else PUBREC, packet_id) if qos else b""

    def _completed(self, payload: bytes) -> None:
        if not payload.startswith(FROM_DEVICE):
            super(TalkingSession, self)._completed(payload)
