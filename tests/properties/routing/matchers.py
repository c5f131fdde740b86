"""The matchers: processes with tables of their own, that share the sources as Kafka's consumer groups do.

Real: the tables and the matcher. Simulated are the steps of sinks/routing/kafka_matcher.py, each of which may come at any time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from sinks.routing.copies import CopyFinder, doubt_of
from sinks.routing.log_ends import Partition
from sinks.routing.matcher import Matcher, RoutedRecord
from sinks.routing.metrics import MatcherCounters
from sinks.routing.retained_table import RetainedTable
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.session_table import SessionTable
from sinks.routing.subscription_table import SubscriptionTable
from state.records.messages import QOS
from state.records.publications import SHARE, Publication
from state.records.uplink import INFLIGHT_ID, MICRO_BATCH
from tests.properties.fast_path.steps import Shared, Step
from tests.properties.routing.account import Account
from tests.properties.routing.log import Kafka, Logged, Topic
from tests.properties.routing.scenario import ROUTING, SHARED_FILTER, RoutingScenario


class Group:
    """The consumer group. owners: the matcher of each source, None = nobody. committed: offsets."""

    def __init__(self, sources: int) -> None:
        self.owners: list[int | None] = [None] * sources
        self.committed = [0] * sources


class MatcherProcess:
    """A matcher and the reader of its tables.

    _position: of the reader. _owned: the next offset of each source, as the matcher believes. _polled: what it has read and not
    matched. _outbox: routed records that are not in the log; a number stands for a source that is finished below an offset.
    """

    def __init__(
        self, number: int, shared: Shared, scenario: RoutingScenario, kafka: Kafka, group: Group, account: Account
    ) -> None:
        self.number = number
        self._shared, self._scenario, self._kafka, self._group, self._account = shared, scenario, kafka, group, account
        self.listener: Callable[[str, int], None] = lambda client_id, process: None
        self._start()

    def _start(self) -> None:
        self.tables = RoutingTables()
        self._matcher = Matcher(
            self.tables,
            replace(ROUTING, shared_strategy=self._scenario.shared_strategy),
            MatcherCounters(),
            messages_partitions=1,
            retained_partitions=1,
            now_ms=lambda: self._shared.now_ms,
        )
        self._position, self._complete_at = 0, self._kafka.subscriptions.end
        self._copies = CopyFinder(self._offset_at, self._ids_between)
        self._behind: set[str] = set()
        self._owned: dict[int, int] = {}
        self._polled: tuple[int, list[Logged]] | None = None
        self._end_at_poll = 0
        self._outbox: deque[RoutedRecord | tuple[int, int]] = deque()
        self._finished: dict[int, int] = {}

    # --- the tables of the process --------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> SubscriptionTable:
        return self.tables.subscriptions

    @property
    def retained(self) -> RetainedTable[Publication]:
        return self.tables.retained

    @property
    def sessions(self) -> SessionTable:
        return self.tables.sessions

    @property
    def marks_all_sessions(self) -> bool:
        return self.tables.marks_all_sessions

    @property
    def is_complete(self) -> bool:
        return self._position >= self._complete_at

    def _read_lists(self, end: int) -> None:
        """Reads `subscriptions` up to an offset."""
        for record in self._kafka.subscriptions.between(self._position, end):
            client_id = self.tables.read_list(record.key, record.value, record.headers)
            if client_id is not None:
                self._behind.add(client_id)
            else:
                self._behind.discard((record.key or b"").decode())
        self._position = max(self._position, end)
        if self.is_complete:
            behind, self._behind = self._behind, set()
            for client_id in sorted(behind):
                self.listener(client_id, self.number)

    # --- what can happen ------------------------------------------------------------------------------------------------------

    def next_steps(self) -> Iterator[Step]:
        end = self._kafka.subscriptions.end
        for upto in {min(self._position + 1, end), end} - {self._position}:
            yield self._step(3, "reads lists", lambda upto=upto: self._read_lists(upto))
        yield from self._steps_of_the_group()
        if self._polled is None:
            for source, count in self._unread():
                for most in {1, count}:
                    yield self._step(20, f"polls {most} of {source}", lambda source=source, most=most: self._poll(source, most))
        else:
            yield self._step(30, "matches", self._match)
        if self._outbox:
            yield self._step(self._scenario.writing, "a routed record lands", self._land)
        if self._finished:
            yield self._step(self._scenario.commits, "commits", self._commit)
        if self._shared.faults_left:
            yield self._step(self._scenario.crashes, "crashes", self._crash)

    def _steps_of_the_group(self) -> Iterator[Step]:
        for source, owner in enumerate(self._group.owners):
            if owner is None and self.is_complete and self._polled is None:
                yield self._step(8, f"is assigned {source}", lambda source=source: self._assign(source))
            if owner == self.number and self._shared.faults_left:
                yield self._step(1, f"is thought dead, with {source}", lambda source=source: self._evict(source))
                if self._polled is None:
                    yield self._step(1, f"lets {source} go", lambda source=source: self._let_go(source))
        if self._polled is None:
            for source in self._not_owned_any_more():
                yield self._step(8, f"notices that it has lost {source}", lambda source=source: self._lose(source))

    def _step(self, weight: int, what: str, run: Callable[[], object]) -> Step:
        return Step(weight, f"matcher {self.number} {what}", run)

    def goes_on(self) -> bool:
        """Does one step that is due. Returns False if none is due."""
        if self._position < self._kafka.subscriptions.end:
            self._read_lists(self._kafka.subscriptions.end)
        elif self._polled is not None:
            self._match()
        elif self._outbox:
            self._land()
        elif lost := self._not_owned_any_more():
            self._lose(lost[0])
        elif None in self._group.owners:
            self._assign(self._group.owners.index(None))
        elif unread := next(self._unread(), None):
            self._poll(*unread)
        elif self._finished:
            self._commit()
        else:
            return False
        return True

    # --- the group ------------------------------------------------------------------------------------------------------------

    def _not_owned_any_more(self) -> list[int]:
        return [source for source in self._owned if self._group.owners[source] != self.number]

    def _assign(self, source: int) -> None:
        self._group.owners[source] = self.number
        self._owned[source] = self._group.committed[source]
        self._finished.pop(source, None)

    def _evict(self, source: int) -> None:
        """The group goes on without this matcher, which does not know that yet."""
        self._shared.faults_left -= 1
        self._group.owners[source] = None

    def _let_go(self, source: int) -> None:
        """A rebalance: commits what is finished, waits no longer for the rest, and lets the source go."""
        self._shared.faults_left -= 1
        self._commit()
        self._group.owners[source] = None
        self._lose(source)

    def _lose(self, source: int) -> None:
        del self._owned[source]
        self._finished.pop(source, None)

    def _crash(self) -> None:
        """Starts anew with empty tables. What it has sent may still get into the log."""
        self._shared.faults_left -= 1
        for source, owner in enumerate(self._group.owners):
            if owner == self.number:
                self._group.owners[source] = None
        routed = [record for record in self._outbox if isinstance(record, RoutedRecord)]
        if self._scenario.copies_land_late:
            self._kafka.may_land_later(deque(lambda record=record: self._kafka.write_routed(record) for record in routed))
        self._start()

    # --- publications ---------------------------------------------------------------------------------------------------------

    def _unread(self) -> Iterator[tuple[int, int]]:
        """Yields sources with records that were not polled, and how many."""
        for source, position in self._owned.items():
            if count := self._kafka.sources[source][1].end - position:
                yield source, count

    def _poll(self, source: int, most: int) -> None:
        position = self._owned[source]
        self._polled = source, self._kafka.sources[source][1].between(position, position + most)
        self._owned[source] = position + most

    def await_tables(self) -> None:
        """The barrier."""
        self._read_lists(self._kafka.subscriptions.end)

    def _match(self) -> None:
        assert self._polled is not None
        (number, records), self._polled = self._polled, None
        self.await_tables()
        source, _ = self._kafka.sources[number]
        members = tuple((each.client_id, each.is_online) for each in self.subscriptions if SHARED_FILTER in each.subscriptions)
        for record in records:
            doubt = doubt_of(record, self.sessions) if source.is_uplink else None
            if doubt is not None and self._copies.is_copy((source.topic, source.partition), record.offset, doubt, 0.0):
                continue
            headers = dict(record.headers)
            given_back = (headers.get(MICRO_BATCH) or b"") if SHARE in headers else b""
            self._account.matched((record.value or b"").decode(), given_back, tuple(sorted(members)))
            self._outbox += self._matcher.route(source, record)
        self._outbox.append((number, records[-1].offset + 1))
        self._settle()

    def _offset_at(self, partition: Partition, time_ms: int) -> int | None:
        log = self._log_of(partition)
        return next((record.offset for record in log.records if record.timestamp >= time_ms), None)

    def _ids_between(self, partition: Partition, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        for record in self._log_of(partition).between(first, end):
            headers = dict(record.headers)
            if headers[QOS] == b"2":
                yield record.offset, headers[INFLIGHT_ID] or b""

    def _log_of(self, partition: Partition) -> Topic:
        (log,) = (log for source, log in self._kafka.sources if (source.topic, source.partition) == partition)
        return log

    def _land(self) -> None:
        record = self._outbox.popleft()
        assert isinstance(record, RoutedRecord)
        self._kafka.write_routed(record)
        self._settle()

    def _settle(self) -> None:
        """Notes what is finished because all records before it are in the log."""
        while self._outbox and not isinstance(self._outbox[0], RoutedRecord):
            number, end = self._outbox.popleft()
            if number in self._owned:
                self._finished[number] = end

    def _commit(self) -> None:
        finished, self._finished = self._finished, {}
        for source, end in finished.items():
            if self._group.owners[source] == self.number:
                self._group.committed[source] = end
