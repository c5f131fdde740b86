"""Records on their way into the log, and the answers that wait for them."""

from collections import deque
from typing import Final

from sinks.mqtt.settings import GatewaySettings

_RESUME_BELOW: Final = 2
"""Reading starts again when the number of unconfirmed records has fallen to a half: not at every confirmation."""


class Append:
    """A record for Kafka, and the answer that its confirmation sets free.

    is_uplink: of `inflight.uplink`, else of `inflight.events`. is_farewell: the engine knows by it that the connection is over.
    frees_quota: a QoS 1 publication, counted against our Receive Maximum until its answer is written.
    """

    __slots__ = ("answer", "confirmed", "frees_quota", "headers", "is_farewell", "is_uplink", "value")

    def __init__(self, value: bytes, answer: bytes | None = None, headers: list[tuple[str, bytes]] | None = None) -> None:
        self.value = value
        self.answer = answer
        self.headers = headers
        self.is_uplink = headers is not None
        self.is_farewell = False
        self.frees_quota = False
        self.confirmed = False


class AppendQueue:
    """What one connection has said and Kafka has not confirmed.

    Answers leave in the order of `add` and `add_answer`, whatever the order of the confirmations [MQTT-4.6.0-2].
    is_full: beyond the settings' limits; nothing more is to be read from the device until it is False again.
    """

    __slots__ = (
        "_answers",
        "_max_bytes",
        "_max_records",
        "_new",
        "is_full",
        "unanswered_qos1",
        "unconfirmed",
        "unconfirmed_bytes",
    )

    def __init__(self, settings: GatewaySettings) -> None:
        self.unconfirmed = 0
        self.unconfirmed_bytes = 0
        self.unanswered_qos1 = 0
        self.is_full = False
        self._max_records = settings.max_unconfirmed_appends
        self._max_bytes = settings.max_unconfirmed_bytes
        self._new: list[Append] = []
        self._answers: deque[Append] = deque()

    def add(self, append: Append) -> None:
        self._new.append(append)
        self.unconfirmed += 1
        self.unconfirmed_bytes += len(append.value)
        self.unanswered_qos1 += append.frees_quota
        if append.answer is not None:
            self._answers.append(append)
        if self.unconfirmed >= self._max_records or self.unconfirmed_bytes >= self._max_bytes:
            self.is_full = True

    def add_answer(self, answer: bytes) -> None:
        """An answer that needs no record, and still its turn."""
        ready = Append(b"", answer)
        ready.confirmed = True
        self._answers.append(ready)

    def take_new(self) -> list[Append]:
        new = self._new
        if new:
            self._new = []
        return new

    def settle(self, append: Append, *, confirmed: bool) -> None:
        """Kafka's last word about a record; then `take_answers`."""
        append.confirmed = confirmed
        self.unconfirmed -= 1
        self.unconfirmed_bytes -= len(append.value)
        if self.is_full and self.unconfirmed * _RESUME_BELOW <= self._max_records and self.unconfirmed_bytes < self._max_bytes:
            self.is_full = False

    def take_answers(self, into: list[bytes]) -> None:
        """Move the answers whose turn has come to the end of a list."""
        answers = self._answers
        while answers and answers[0].confirmed:
            first = answers.popleft()
            self.unanswered_qos1 -= first.frees_quota
            if first.answer is not None:
                into.append(first.answer)
