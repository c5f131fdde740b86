"""Notes what was sent, what the device got and how each message ended, and checks what must hold between these."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from state.model import Outcome
from state.records.receipts import Receipt
from state.session import Session
from state.settings import RetryMqtt5
from tests.properties.fast_path.kafka import Kafka, Record
from tests.properties.fast_path.steps import Shared

_NEVER_RECEIVED: Final = (
    *(Outcome.EXPIRED, Outcome.MAXLEN, Outcome.OFFLINE, Outcome.TOO_LARGE, Outcome.INVALID),
    *(Outcome.REPLACED, Outcome.CANCELLED),
)


class Account:
    """Keeps what became of each message, by name. Its methods raise AssertionError when a promise is broken.

    sent: QoS by name. got: how often the device's application received the message. order: names in the order of first receipt.
    refused: messages that the device has refused. keys: collapse keys by name. not_before_ms: `deliver-at` by name.
    lost: messages that were gone before the engine read them. A gateway may have sent one of them.
    """

    def __init__(self, shared: Shared, kafka: Kafka) -> None:
        self._shared, self._scenario, self._kafka = shared, shared.scenario, kafka
        self.sent: dict[str, int] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.got: Counter[str] = Counter()
        self.order: list[str] = []
        self.refused: set[str] = set()
        self.keys: dict[str, str] = {}
        self.not_before_ms: dict[str, int] = {}
        self.lost: set[str] = set()

    @property
    def without_outcome(self) -> set[str]:
        return self.sent.keys() - self.outcomes.keys() - self.lost

    def received(self, name: str) -> None:
        """Notes that the device's application gets a message."""
        self.got[name] += 1
        is_first, qos = self.got[name] == 1, self.sent[name]
        assert is_first or qos != 2 or self._was_refused_meanwhile(name), f"{name} twice at QoS 2"
        assert self._shared.now_ms >= self.not_before_ms.get(name, 0), f"{name} comes too early"
        if not is_first:
            return
        self.order.append(name)
        if name in self.refused:
            return
        outcome = self.outcomes.get(name)
        assert outcome not in _NEVER_RECEIVED, f"{name} comes after its end as {outcome}"
        if self._keeps_order():
            for other in self.order[:-1]:
                is_in_order = other < name or self.sent[other] != qos or not self._keep_order(name, other)
                assert is_in_order, f"{name} comes after {other}"

    def _keep_order(self, name: str, other: str) -> bool:
        """Returns False for two messages of which the later one may come first: by another collapse key, or a `deliver-at`."""
        if {name, other} & (self.not_before_ms.keys() | self.lost):
            return False
        return self.keys.get(name) == self.keys.get(other)

    def _was_refused_meanwhile(self, name: str) -> bool:
        """The refusal may have crossed a repetition on the same connection, where these are allowed (edge_cases.md)."""
        return name in self.refused and self._scenario.session.retry_mqtt5 is RetryMqtt5.TIMER

    def _keeps_order(self) -> bool:
        return set(self._scenario.priorities) == {0}

    def ended(self, receipt: Receipt) -> None:
        """Notes a receipt of the engine."""
        name, outcome = self._kafka.name_of(receipt.message_id), receipt.outcome
        assert name not in self.outcomes, f"two outcomes of {name}: {self.outcomes[name]}, then {outcome}"
        got = self.got[name]
        if outcome is Outcome.DELIVERED:
            assert got, f"{name} is delivered, and the device never got it"
        elif outcome in _NEVER_RECEIVED and name not in self.refused:  # a repetition may cross its refusal
            assert not got, f"{name} has ended as {outcome}, and the device has it"
        self.outcomes[name] = outcome

    def check(self, session: Session, messages_read: Iterable[Record]) -> None:
        """Checks that each message that the session has read is held by the session or has an outcome."""
        outbound = session.outbound
        deliveries = (*(entry.delivery for entry in outbound.window), *outbound.queue)
        messages = (*(delivery.message for delivery in deliveries), *outbound.scheduled)
        held = [self._kafka.name_of(message.message_id) for message in messages]
        assert len(held) == len(set(held)), f"held twice: {held}"
        assert not set(held) & self.outcomes.keys(), "held, and has its outcome"
        for record in messages_read:
            if record.name in self.sent:
                assert record.name in held or record.name in self.outcomes, f"{record.name} is nowhere: lost"
