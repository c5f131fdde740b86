"""Answers a gateway's questions about the routing tables of its process (sinks/routing/)."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from sinks.mqtt.settings import Limit
from sinks.routing.retained_table import RetainedTable
from sinks.routing.session_table import SessionTable
from sinks.routing.settings import RoutingSettings
from sinks.routing.subscription_table import SubscriptionTable
from state.events import ExpiredSession
from state.model import ClientId


class KnownTables(Protocol):
    """Says what a process knows of subscriptions and retained messages. It may be behind the log."""

    def has_list(self, client_id: ClientId) -> bool:
        """Returns False only if it is known that the client has no subscriptions in `inflight.subscriptions`."""

    @property
    def knows_sessions(self) -> bool:
        """Returns True if `kept_ms` is right once the tables are as far as the log."""

    def kept_ms(self, client_id: ClientId) -> int | None:
        """Returns for how long the client's session surely lives; 0 = that is not known. None = no session is marked."""

    def expired(self, client_id: ClientId) -> ExpiredSession | None:
        """Returns the client's session if it has expired and the log does not say so yet."""

    def wills_settled(self, client_id: ClientId) -> bool:
        """Returns True if no will of the client's earlier connections can get into the log any more.

        It is right once the tables are as far as the log. True is certain only if `knows_sessions`.
        """

    def marked_by(self, client_id: ClientId) -> int | None:
        """Returns the latest connection that has marked the client's session; None = no session is marked."""

    def is_highest(self, client_id: ClientId, list_id: tuple[int, int]) -> bool:
        """Returns True if the client's highest list is known, and is not above this one by `order_of`."""

    def retained_limit(self, topic: str, payload_bytes: int) -> Limit | None:
        """Returns the limit that one more retained message would exceed, if any."""


class _NoTables:
    """Answers where nothing is known."""

    def has_list(self, client_id: ClientId) -> bool:
        return True

    @property
    def knows_sessions(self) -> bool:
        return False

    def kept_ms(self, client_id: ClientId) -> int | None:
        return 0

    def expired(self, client_id: ClientId) -> ExpiredSession | None:
        return None

    def wills_settled(self, client_id: ClientId) -> bool:
        return False

    def marked_by(self, client_id: ClientId) -> int | None:
        return None

    def is_highest(self, client_id: ClientId, list_id: tuple[int, int]) -> bool:
        return False

    def retained_limit(self, topic: str, payload_bytes: int) -> Limit | None:
        return None


NO_TABLES: Final[KnownTables] = _NoTables()


class TablesOfProcess(Protocol):
    """The tables that a reader in this process fills on its own thread. It may replace them."""

    @property
    def subscriptions(self) -> SubscriptionTable: ...
    @property
    def retained(self) -> RetainedTable[Any]: ...
    @property
    def sessions(self) -> SessionTable: ...
    @property
    def marks_all_sessions(self) -> bool: ...


class RoutingView:
    """KnownTables on the tables of this process, of which it asks only what needs no lock.

    Args:
        is_complete: Returns whether the reader has reached the ends that the topics had when it began.
        now_ms: Returns the brokers' time, in milliseconds.
    """

    def __init__(
        self, settings: RoutingSettings, tables: TablesOfProcess, is_complete: Callable[[], bool], now_ms: Callable[[], int]
    ) -> None:
        self._now_ms = now_ms
        self._settings = settings
        self._tables = tables
        self._is_complete = is_complete

    def has_list(self, client_id: ClientId) -> bool:
        return not self._is_complete() or self._tables.subscriptions.get(client_id) is not None

    @property
    def knows_sessions(self) -> bool:
        return self._is_complete() and self._tables.marks_all_sessions

    def kept_ms(self, client_id: ClientId) -> int | None:
        mark = self._tables.sessions.get(client_id.encode())
        if mark is None:
            return None if self._is_complete() else 0
        return max(0, mark.kept_until_ms - self._now_ms())

    def expired(self, client_id: ClientId) -> ExpiredSession | None:
        mark = self._tables.sessions.get(client_id.encode())
        return None if mark is None else mark.expired(self._now_ms())

    def wills_settled(self, client_id: ClientId) -> bool:
        mark = self._tables.sessions.get(client_id.encode())
        return self._is_complete() if mark is None else mark.wills_settled

    def marked_by(self, client_id: ClientId) -> int | None:
        mark = self._tables.sessions.get(client_id.encode())
        return None if mark is None else mark.connection_id

    def is_highest(self, client_id: ClientId, list_id: tuple[int, int]) -> bool:
        entry = self._tables.subscriptions.get(client_id)
        return entry is not None and (entry.connection_id, entry.version, not entry.is_online) <= (*list_id, False)

    def retained_limit(self, topic: str, payload_bytes: int) -> Limit | None:
        settings, retained = self._settings, self._tables.retained
        former = retained.get(topic, 0)  # an expired one takes room until it is deleted
        if former is None and len(retained) >= settings.max_retained_messages:
            return Limit.RETAINED_MESSAGES
        size_bytes = len(topic.encode()) + payload_bytes - (0 if former is None else former.size_bytes)
        return Limit.RETAINED_BYTES if retained.size_bytes + size_bytes > settings.max_retained_bytes else None
