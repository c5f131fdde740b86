"""The backend: it sends messages m000, m001, … to the client, and others to other clients."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from state.records.record import Header
from tests.properties.fast_path.books import Books
from tests.properties.fast_path.kafka import Kafka
from tests.properties.fast_path.moves import Move, Shared

_MOST_MESSAGES: Final = 40
_PADDING: Final = b" " * 20
"""What makes a message too large for the fast path."""


class Backend:
    def __init__(self, shared: Shared, kafka: Kafka, books: Books) -> None:
        self._shared, self._kafka, self._books = shared, kafka, books

    def moves(self) -> Iterator[Move]:
        if len(self._books.sent) < _MOST_MESSAGES:
            yield Move(15, "the backend sends", self.submit)
        yield Move(1, "another client's message", lambda: self._kafka.append_message("", self._shared.now_ms))

    def submit(self, *, is_plain: bool = False) -> None:
        """is_plain: of a kind that may take the fast path."""
        story, number = self._shared.story, len(self._books.sent)
        if is_plain:
            story = replace(story, lives_s=(None,), priorities=(0,), large=False)
        name = f"m{number:03}"
        qos = story.qos[number % len(story.qos)]
        headers = [Header("mqtt-topic", b"t"), Header("mqtt-qos", b"%d" % qos)]
        if number % story.unnamed:
            headers.append(Header("message-id", name.encode()))
        life_s = story.lives_s[number % len(story.lives_s)]
        if life_s is not None:
            headers.append(Header("expiration", b"%d" % (life_s * 1_000)))
        priority = story.priorities[number % len(story.priorities)]
        if priority:
            headers.append(Header("priority", b"%d" % priority))
        self._books.sent[name] = qos
        padding = _PADDING if story.large and number % 4 == 3 else b""
        self._kafka.append_message(name, self._shared.now_ms, headers, name.encode() + padding)
