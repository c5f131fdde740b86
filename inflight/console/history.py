"""Runs the console's queries on Kafka, the archive and the checkpoint. Every result is bounded."""

import base64
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from inflight.console.presence_events import PresenceEvents, newest_changes
from inflight.console.worker import Progress
from inflight.local.spark_jars import spark_jars
from inflight.status.client import fate_sentences
from inflight.status.measurements import SessionTotals
from inflight.status.sessions import totals_of_checkpoint, totals_of_engine
from sinks.mqtt_topics import is_topic_name
from state.model import DEAD_LETTERED, Outcome
from streaming.config.settings import Settings
from streaming.history import replay as replaying
from streaming.history import trace
from streaming.history.clients import StoredClient, stored_in
from streaming.history.dead_letters import DeadLetters
from streaming.history.errors import NothingFound
from streaming.history.live_sessions import LiveSessions
from streaming.history.output import beginning_of
from streaming.history.recent import RecentSteps, newest_messages, recent_steps
from streaming.history.sources.merged import source_of
from streaming.history.sources.source import SourceChoice, SourceLimits
from streaming.history.store import Store
from streaming.history.subscriptions import (
    RetainedMessage,
    Subscriber,
    read_retained,
    read_subscriptions,
    subscribers_of,
)
from streaming.history.trace import TraceStep

MAX_ROWS: Final = 100
"""Rows of a list on a page."""
MAX_REPLAYED: Final = 1_000
"""Dead letters that one replay considers."""
REASONS: Final = tuple(sorted(outcome.value for outcome in DEAD_LETTERED))
_PAYLOAD_BYTES: Final = 200
_SHOWN_PAYLOAD_BYTES: Final = 4_096
_LEDGER_RECORDS: Final = 100_000
_NEWEST_RECORDS: Final = 1_000
_NEWEST_MESSAGES: Final = 20
_LETTER_ID: Final = re.compile(r"[0-9a-f]{8,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTrace:
    """The steps of a message.

    Attributes:
        steps: Oldest first.
        fates: Where the message is now, a sentence for each of its clients.
        sources: Where they were read, as lines for people.
    """

    steps: tuple[TraceStep, ...]
    sources: tuple[str, ...]
    fates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersFilter:
    """Selects dead letters.

    Attributes:
        client_id: Empty = all clients.
        reason: One of REASONS; empty = all.
        letter_id: One dead letter; empty = all.
    """

    client_id: str = ""
    reason: str = ""
    letter_id: str = ""

    @property
    def condition(self) -> str | None:
        """A condition in SQL. Nothing that a user has typed is in it, except hexadecimal digits."""
        if self.letter_id:
            if not is_letter_id(self.letter_id):
                raise AssertionError("page_queries.py has checked the id")
            return f"dead_letter_id = '{self.letter_id}'"
        return f"reason = '{Outcome(self.reason).value}'" if self.reason else None


def is_letter_id(text: str) -> bool:
    """Returns True if a text may be the id of a dead letter."""
    return _LETTER_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Dead letters.

    Attributes:
        letters: Rows of the table `dead_letters`, newest first. `payload` is text and cut.
        sources: As in MessageTrace.
    """

    letters: tuple[dict[str, Any], ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """Holds what a matcher knows of a topic.

    Attributes:
        subscribers: The first ones; none for a filter.
        count: All subscriptions that match.
        retained: The first retained messages of the topic, or of all topics that the filter matches.
    """

    subscribers: tuple[Subscriber, ...]
    count: int
    retained: tuple[RetainedMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReplay:
    """A dead letter that would be sent."""

    message_id: str
    client_id: str
    dead_letter_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The result of a dry run.

    Attributes:
        is_cut: The limit was reached; newer dead letters that match are not in the plan.
        skipped: How many dead letters are not sent, by reason.
    """

    chosen: LettersFilter
    matched: int
    is_cut: bool
    planned: tuple[PlannedReplay, ...]
    sources: tuple[str, ...]
    skipped: dict[str, int] = field(default_factory=dict)


class History:
    """Runs the queries on the worker's thread. The engine answers about sessions; without one Spark reads its checkpoint.

    Methods raise InflightError with a text for people.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine = LiveSessions(settings, spark_jars)

    def sessions(self) -> SessionTotals:
        return totals_of_engine(self._settings, worst=MAX_ROWS) or totals_of_checkpoint(self._settings, worst=MAX_ROWS)

    def clients(self, prefix: str) -> Sequence[dict[str, Any]]:
        return self._engine.longest(limit=MAX_ROWS, prefix=prefix)

    def client(self, client_id: str) -> StoredClient:
        row = self._engine.client(client_id)
        if row is None:
            raise NothingFound(f"there is no session of client {client_id!r}")
        return stored_in(row, self._settings.session_settings, most=MAX_ROWS)

    def steps(self, client_id: str, on_progress: Progress) -> RecentSteps:
        return recent_steps(self._settings, client_id, max_records=_LEDGER_RECORDS, most=MAX_ROWS, on_progress=on_progress)

    def trace(self, message_id: str, client_id: str, on_progress: Progress) -> MessageTrace:
        limits = SourceLimits(client_id=client_id or None)
        source = source_of(self._settings, SourceChoice.AUTO, limits, on_progress=on_progress)
        steps = trace.trace(source, message_id)
        fates = tuple(fate_sentences(self._settings, steps))
        return MessageTrace(steps=tuple(steps), fates=fates, sources=tuple(source.described()))

    def newest(self, on_progress: Progress) -> RecentSteps:
        return newest_messages(self._settings, max_records=_NEWEST_RECORDS, most=_NEWEST_MESSAGES, on_progress=on_progress)

    def presence(self, prefix: str, on_progress: Progress) -> PresenceEvents:
        return newest_changes(self._settings, prefix, max_records=_NEWEST_RECORDS, most=MAX_ROWS, on_progress=on_progress)

    def topic(self, topic: str, on_progress: Progress) -> TopicView:
        """Returns the subscribers and the retained messages of a topic.

        Args:
            topic: A valid topic name or filter. A filter finds no subscribers.

        Raises:
            NothingFound: Routing is off.
        """
        settings = self._settings
        if not settings.routing.enabled:
            raise NothingFound("nobody routes: routing.enabled is false, so there are neither subscribers nor retained messages")
        found = subscribers_of(read_subscriptions(settings, on_progress), topic) if is_topic_name(topic) else []
        now_ms = time.time_ns() // 1_000_000
        retained = read_retained(settings, topic, on_progress, now_ms=now_ms, most=MAX_ROWS, payload_bytes=_PAYLOAD_BYTES)
        return TopicView(subscribers=tuple(found[:MAX_ROWS]), count=len(found), retained=tuple(retained))

    def letters(self, chosen: LettersFilter) -> Letters:
        with self._store(chosen.client_id) as store:
            letters = DeadLetters(store).listed(limit=MAX_ROWS, where=chosen.condition, payload_bytes=_PAYLOAD_BYTES + 1)
            found = tuple(_readable(letter, _PAYLOAD_BYTES) for letter in letters)
            return Letters(letters=found, sources=tuple(store.described()))

    def letter(self, dead_letter_id: str, client_id: str) -> dict[str, Any]:
        with self._store(client_id) as store:
            return _readable(DeadLetters(store).one(dead_letter_id), _SHOWN_PAYLOAD_BYTES)

    def plan(self, chosen: LettersFilter) -> ReplayPlan:
        count = replaying.ReplayCount()
        with self._store(chosen.client_id) as store:
            found = tuple(
                PlannedReplay(
                    message_id=letter.message.message_id, client_id=letter.client_id, dead_letter_id=letter.dead_letter_id
                )
                for letter in _candidates(store, chosen, count)
            )
            sources = tuple(store.described())
        return ReplayPlan(
            chosen=chosen,
            matched=count.matched,
            is_cut=count.matched >= MAX_REPLAYED,
            planned=found,
            sources=sources,
            skipped={why.value: number for why, number in count.skipped.items()},
        )

    def replay(self, plan: ReplayPlan, on_progress: Progress, *, by: str) -> int:
        """Sends what was planned, unless it has been sent meanwhile. Returns how many were sent.

        Args:
            by: Who sends it, for people; it stands in the ledger.
        """
        planned, count = {letter.dead_letter_id for letter in plan.planned}, replaying.ReplayCount()
        with self._store(plan.chosen.client_id) as store:
            replaying.send_again(
                self._settings,
                replace(_options(plan.chosen), by=by),
                (letter for letter in _candidates(store, plan.chosen, count) if letter.dead_letter_id in planned),
                count,
                lambda now: on_progress(now.sent, len(planned)),
            )
        return count.sent

    def _store(self, client_id: str) -> Store:
        return Store(self._settings, self._engine.every, limits=SourceLimits(client_id=client_id or None))


def _candidates(store: Store, chosen: LettersFilter, count: replaying.ReplayCount) -> Iterator[replaying.ReplayLetter]:
    options = _options(chosen)
    return replaying.letters(islice(DeadLetters(store).candidates(options), MAX_REPLAYED), options, count)


def _options(chosen: LettersFilter) -> replaying.ReplayOptions:
    return replaying.ReplayOptions(where=chosen.condition)


def _readable(letter: dict[str, Any], payload_bytes: int) -> dict[str, Any]:
    return {**letter, "payload": beginning_of(base64.b64decode(letter["payload"] or ""), payload_bytes), "payload_text": None}
