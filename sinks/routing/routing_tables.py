"""Holds what a process knows about subscriptions and retained messages, and applies the records of both topics to it."""

import threading
from collections.abc import Sequence
from typing import Final

from sinks.routing.delayed_table import DelayedTable
from sinks.routing.retained_once import RecentlyRetained
from sinks.routing.retained_table import RetainedEntry, RetainedTable
from sinks.routing.session_table import SessionTable
from sinks.routing.subscription_table import SubscriptionTable
from state.errors import UNDECODABLE, UnreadableRecord
from state.model import ClientId
from state.records.delayed import decode_delayed, is_delayed
from state.records.messages import BrokenContract
from state.records.publications import Publication, publication_in
from state.records.record import HEADER_BYTES, Header
from state.records.session_marks import ALL_MARKED, MARK, read_mark
from state.records.subscriptions import decode_subscriptions, ended_connection
from state.records.uplink import INFLIGHT_ID

_OF_SESSIONS: Final = (MARK, ALL_MARKED)

Headers = Sequence[tuple[str, bytes | None]]


class RoutingTables:
    """The tables of a process. One thread reads records into them; others look things up while they hold `lock`.

    Attributes:
        subscriptions, retained: Look things up only with `lock`, except for `get` and `len`.
        delayed: Publications with RETAIN that wait for their time. Use it with `lock`, except for `has_due` and `len`.
        generation: Changes whenever the tables are emptied.
        unreadable: Counts records that could not be decoded.
        sessions: The clients that have a session. Any thread may ask.
        marks_all_sessions: `sessions` has all of them that can outlive a connection. Any thread may ask.
        recently_retained: When the last publications of devices were retained. Use it with `lock`.
        clocks_differ_ms: By how much the times of two records may differ from the order in which brokers have stored them.
    """

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.subscriptions = SubscriptionTable()
        self.retained: RetainedTable[Publication] = RetainedTable()
        self.delayed = DelayedTable()
        self.generation = 0
        self.unreadable = 0
        self.sessions = SessionTable()
        self.marks_all_sessions = False
        self.recently_retained = RecentlyRetained()
        self.clocks_differ_ms = 0

    def clear(self) -> None:
        """Forgets everything, because the topics are read from the beginning."""
        with self.lock:
            self.generation += 1
            self.sessions, self.marks_all_sessions = SessionTable(), False
            self.subscriptions = SubscriptionTable()
            self.retained = RetainedTable()
            self.delayed = DelayedTable()

    def read_list(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int = 0) -> ClientId | None:
        """Applies a record of `inflight.subscriptions`; the caller holds `lock`.

        Args:
            timestamp_ms: Time of the record, in ms since 1970.

        Returns:
            The client if the record is lower than one before it: compaction would keep the wrong one. Whoever holds the client's
            connection has to append its list again. None otherwise.
        """
        if key is not None and key.startswith(_OF_SESSIONS):
            self._read_mark(key, value, headers, timestamp_ms)
            return None
        try:
            client_id = (key or b"").decode()
            if value is None:
                is_highest = self.subscriptions.end(client_id, ended_connection(list(headers)))
            else:
                is_highest = self.subscriptions.replace(client_id, decode_subscriptions(value), timestamp_ms)
        except (UnreadableRecord, *UNDECODABLE):
            self.unreadable += 1
            return None
        return None if is_highest else client_id

    def _read_mark(self, key: bytes, value: bytes | None, headers: Headers, timestamp_ms: int) -> None:
        if key == ALL_MARKED:
            self.marks_all_sessions = value is not None
            return
        client = key.removeprefix(MARK)
        try:
            if value is None:
                self.sessions.end(client, ended_connection(list(headers)))
            else:
                self.sessions.mark(client, read_mark(decode_subscriptions(value).connection_id, headers, timestamp_ms))
        except UnreadableRecord:
            self.unreadable += 1

    def read_retained(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> None:
        """Applies a record of `inflight.retained`; the caller holds `lock`. A record without a value deletes."""
        if key is not None and is_delayed(key):
            self._read_delayed(key, value, headers, timestamp_ms)
            return
        topic = (key or b"").decode(errors="replace")
        inflight_id = next((content for name, content in headers if name == INFLIGHT_ID), None)
        if inflight_id is not None:
            self.recently_retained.add(inflight_id, timestamp_ms)
        if not value:
            self.retained.delete(topic)
            return
        try:
            publication = publication_in(
                [Header(name, content) for name, content in headers],
                value,
                accepted_ms=timestamp_ms,
                default_message_id="",
                is_uplink=inflight_id is not None,
            )
        except BrokenContract:
            self.unreadable += 1
            self.retained.delete(topic)
            return
        self.retained.put(topic, RetainedEntry(publication, _size(key, value, headers), publication.message.expires_at_ms))

    def _read_delayed(self, key: bytes, value: bytes | None, headers: Headers, timestamp_ms: int) -> None:
        if value is None:
            self.delayed.delete(key)
            return
        try:
            delayed = decode_delayed([Header(name, content) for name, content in headers], value, accepted_ms=timestamp_ms)
        except BrokenContract:
            self.unreadable += 1
            self.delayed.delete(key)
            return
        self.delayed.put(key, delayed, _size(key, value, headers))

    def delete_expired(self, now_ms: int) -> None:
        """Frees the memory of expired retained messages. In Kafka they stay, because a newer one may stand behind them by now."""
        with self.lock:
            self.retained.delete_expired(now_ms)


def _size(key: bytes | None, value: bytes, headers: Headers) -> int:
    return len(key or b"") + len(value) + sum(len(name) + len(content or b"") + HEADER_BYTES for name, content in headers)
