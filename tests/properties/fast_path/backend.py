"""The backend: it sends messages m000, m001, … to the client, and others to other clients."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from state.records.record import Header
from tests.properties.fast_path.account import Account
from tests.properties.fast_path.kafka import Kafka
from tests.properties.fast_path.steps import Shared, Step

_MOST_MESSAGES: Final = 40
_PADDING: Final = b" " * 20
"""A padding that makes a message too large for the fast path."""


class Backend:
    def __init__(self, shared: Shared, kafka: Kafka, account: Account) -> None:
        self._shared, self._kafka, self._account = shared, kafka, account

    def next_steps(self) -> Iterator[Step]:
        if len(self._account.sent) < _MOST_MESSAGES:
            yield Step(15, "the backend sends", self.submit)
        if self._shared.scenario.cancels and self._account.sent:
            for name in list(self._account.sent)[-3:]:
                yield Step(2, f"the backend cancels {name}", lambda name=name: self._cancel(name))
        yield Step(1, "another client's message", lambda: self._kafka.append_message("", self._shared.now_ms))

    def submit(self, *, is_plain: bool = False) -> None:
        """is_plain: of a kind that may take the fast path."""
        scenario, number = self._shared.scenario, len(self._account.sent)
        if is_plain:
            scenario = replace(scenario, lives_s=(None,), priorities=(0,), large=False, delays_s=(None,))
        name = f"m{number:03}"
        qos = scenario.qos[number % len(scenario.qos)]
        headers = [Header("mqtt-topic", b"t"), Header("mqtt-qos", b"%d" % qos)]
        if number % scenario.unnamed:
            headers.append(Header("message-id", name.encode()))
        life_s = scenario.lives_s[number % len(scenario.lives_s)]
        if life_s is not None:
            headers.append(Header("expiration", b"%d" % (life_s * 1_000)))
        key = scenario.keys[number % len(scenario.keys)]
        if key is not None:
            headers.append(Header("collapse-key", key.encode()))
            self._account.keys[name] = key
        delay_s = scenario.delays_s[number % len(scenario.delays_s)]
        if delay_s is not None and (life_s is None or life_s > delay_s):
            headers.append(Header("deliver-at", b"+%ds" % delay_s))
            self._account.not_before_ms[name] = self._shared.now_ms + 1_000 * delay_s
        priority = scenario.priorities[number % len(scenario.priorities)]
        if priority:
            headers.append(Header("priority", b"%d" % priority))
        self._account.sent[name] = qos
        padding = _PADDING if scenario.large and number % 4 == 3 else b""
        self._kafka.append_message(name, self._shared.now_ms, headers, name.encode() + padding)

    def _cancel(self, name: str) -> None:
        """Takes a message back under its name, which not every message has as its id."""
        self._kafka.append_message(f"cancel-{name}", self._shared.now_ms, [Header("cancel-message-id", name.encode())])
