"""Reads the commands topic for an asyncio loop, and the consumer behind it.

The consumer has a thread of its own. Records cross over in batches, one wake-up of the loop for many. All methods are called on
the loop, all callbacks run on it.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import structlog

from sinks.kafka.group_consumer import CommitRefused, ConsumedRecord, GroupConsumer, MemberFenced, PartitionsAssigned
from sinks.kafka.group_instance import STAMP_INTERVAL_S, GroupInstanceTaken, MemberStamps, await_instance_free, fenced

_log: Final = structlog.get_logger(__name__)
_COMMIT_INTERVAL_S: Final = STAMP_INTERVAL_S
_BATCHES_AHEAD: Final = 4
_MOST_RECORDS: Final = 500
_POLL_S: Final = 0.2
_RESTART_PAUSE_S: Final = 1.0
_LAST_COMMIT_S: Final = 5.0
_LEAVE_S: Final = 2.0
_NAME_CHECK_HOLDS_S: Final = 10.0
_UNCERTAIN_BATCHES: Final = 256
_GIVEN_UP_S: Final = 2.0
"""A late loop delays a partition for at most this time on its way to another member. The group waits for it meanwhile."""


class CommandListener(Protocol):
    """Carries commands out."""

    def partitions_assigned(self, partitions: frozenset[int]) -> None:
        """Announces partitions: every record written to them from now on will come."""

    def partitions_revoked(self, partitions: frozenset[int]) -> None:
        """Announces partitions that somebody else reads now."""

    def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
        """Carries out the next records, in order. They count as carried out when this returns.

        Returns what may only be done once it is certain that the partition is still ours: a process that stood still, or that
        the group has gone on without, reads what belongs to somebody else by now.
        """


class CommandTail(Protocol):
    """Reads the commands topic as a member of a consumer group."""

    def start(self, listener: CommandListener) -> None:
        """Joins the group, the first time or after `leave`."""

    def leave(self) -> None:
        """Leaves the group, in a while: `partitions_revoked` follows for every partition."""

    async def close(self, timeout_s: float) -> None: ...


class KafkaCommandTail:
    """CommandTail on a consumer in a thread of its own.

    A commit that Kafka accepts shows that a partition is still ours: it refuses the commit of a process that is no member any
    more.

    A partition is announced only when its start position is fixed: the offset that the group has committed, else the end of the
    log. Offsets of records that the listener has carried out are committed about once a second. Partitions move one by one
    (cooperative rebalancing): a new gateway costs only the devices of the partitions that it gets their connection. It gets them
    when the listener has given them up: two processes connect a device for the same partition only if a loop is very late.

    After `leave` Kafka keeps the partitions of a static member until the session time-out. Nobody reads them until then.

    Args:
        on_taken: Called once on the loop when another process has joined under our `group_instance_id`. Nothing is read any more,
            and `check` raises.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        topic: str,
        group_id: str,
        group_instance_id: str | None,
        session_timeout_ms: int,
        fetch_max_wait_ms: int,
        options: Mapping[str, Any],
        on_taken: Callable[[], None] = lambda: None,
    ) -> None:
        self._group_id = group_id
        self._group_instance_id = group_instance_id
        self._bootstrap_servers = bootstrap_servers
        self._options = options
        self._on_taken = on_taken
        self._taken: GroupInstanceTaken | None = None
        self._stamps = None if group_instance_id is None else MemberStamps(group_instance_id)
        self._new_consumer = partial(
            GroupConsumer,
            topic,
            bootstrap_servers=bootstrap_servers,
            group_id=group_id,
            group_instance_id=group_instance_id,
            session_timeout_ms=session_timeout_ms,
            fetch_max_wait_ms=fetch_max_wait_ms,
            options=options,
            resumes=True,
            on_commit=self._committed_or_not,
        )
        self._name_checked_s = math.inf
        """When it was seen that no other process lives under the name. inf: no join has to ask; -inf: the next one has to."""
        self._is_wanted = threading.Event()
        """Set while this process is to be in the group, and at the end."""
        self._stopping = threading.Event()
        self._stop_at_s = math.inf
        self._room = threading.Semaphore(_BATCHES_AHEAD)
        self._carried_out: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._commits_under_way = 0
        self._refused: CommitRefused | None = None
        """The reason if Kafka has refused the newest commit."""
        self._owned: set[int] = set()
        self._has_new_partition = False
        self._uncertain: dict[int, deque[tuple[int, list[Callable[[], None]]]]] = {}
        """By partition: actions that wait for a commit of that offset, the newest `_UNCERTAIN_BATCHES`. Used on the loop only.

        In a rebalance nothing is read. But a group may refuse commits for hours (rights, too few replicas) while records come:
        the oldest actions are dropped then. The engine asks again with its next command, or the lease ends.
        """
        self._is_uncertain = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: CommandListener | None = None

    async def await_instance_free(self) -> None:
        """Call it before this process does anything else. Raises GroupInstanceTaken when another one lives under the name."""
        await asyncio.to_thread(self._await_name_free)
        self._name_checked_s = time.monotonic()

    def start(self, listener: CommandListener) -> None:
        self._listener = listener
        self._is_wanted.set()
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="inflight-commands", daemon=True)
            self._thread.start()

    def leave(self) -> None:
        if not self._stopping.is_set():
            self._is_wanted.clear()

    async def close(self, timeout_s: float) -> None:
        self._stop_at_s = time.monotonic() + timeout_s
        self._stopping.set()
        self._is_wanted.set()
        thread = self._thread
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, thread.join, timeout_s)

    def check(self) -> None:
        """Raises GroupInstanceTaken when another process has joined under our `group_instance_id`."""
        if self._taken is not None:
            raise self._taken

    # --- on the consumer's thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._is_wanted.wait()
            if self._stopping.is_set():
                break
            try:
                if time.monotonic() - self._name_checked_s > _NAME_CHECK_HOLDS_S:
                    self._await_name_free()
                self._name_checked_s = math.inf
                self._consume()
            except MemberFenced:  # joining again would fence the other one
                self._taken = fenced(self._group_id, self._group_instance_id)
                self._stopping.set()
            except GroupInstanceTaken as error:  # joining would fence the one that came while this process was in no group
                self._taken = error
                self._stopping.set()
            except Exception as error:  # noqa: BLE001 - whatever it was, a new consumer is the cure
                _log.warning("commands_consumer_failed", error=repr(error), action="a new consumer starts in a second")
            if self._owned:
                self._on_loop(self._revoked, frozenset(self._owned))
                self._owned.clear()
            self._stopping.wait(_RESTART_PAUSE_S)
        if self._taken is not None:
            self._on_loop(self._on_taken)

    def _await_name_free(self) -> None:
        await_instance_free(
            bootstrap_servers=self._bootstrap_servers,
            group_id=self._group_id,
            group_instance_id=self._group_instance_id,
            options=self._options,
        )

    def _consume(self) -> None:
        consumer: GroupConsumer = self._new_consumer(on_revoke=lambda: self._await_given_up(consumer))
        try:
            next_commit = time.monotonic() + _COMMIT_INTERVAL_S
            self._committed, self._commits_under_way, self._refused = {}, 0, None
            while self._is_wanted.is_set() and not self._stopping.is_set():
                batches = consumer.poll(_POLL_S, _MOST_RECORDS)
                self._follow_assignment(consumer)
                if self._has_new_partition:
                    self._has_new_partition = False
                    next_commit = 0.0  # else whoever comes after a short life would begin at the end of the log
                for partition, records in batches.items():
                    if partition in self._owned and not self._hand_over(partition, records):
                        return
                if self._is_uncertain or time.monotonic() >= next_commit:
                    self._is_uncertain = False
                    next_commit = time.monotonic() + _COMMIT_INTERVAL_S
                    self._commit(consumer)
            self._name_checked_s = -math.inf  # the last commit gives the name up
            self._commit_and_wait(consumer)
        finally:
            consumer.close()

    def _await_given_up(self, consumer: GroupConsumer) -> None:
        """Waits until the listener has heard of the changes, as far as its loop is not late."""
        self._follow_assignment(consumer)
        has_heard = threading.Event()
        self._on_loop(has_heard.set)
        has_heard.wait(_GIVEN_UP_S)

    def _follow_assignment(self, consumer: GroupConsumer) -> None:
        """Reports changes to the listener."""
        while consumer.changes:
            change = consumer.changes.popleft()
            if isinstance(change, PartitionsAssigned):
                partitions = frozenset(change.starts)
                self._carried_out |= change.starts
                self._owned |= partitions
                self._on_loop(self._assigned, partitions)
                self._has_new_partition = True
            else:
                self._owned -= change.partitions
                self._on_loop(self._revoked, change.partitions)

    def _hand_over(self, partition: int, records: list[ConsumedRecord]) -> bool:
        """Gives records to the listener. False: stopping."""
        while not self._room.acquire(timeout=0.2):
            if self._stopping.is_set():
                return False
        values = [record.value for record in records if record.value is not None]
        self._on_loop(self._deliver, partition, values, records[-1].offset + 1)
        return True

    def _commit(self, consumer: GroupConsumer) -> None:
        """Commits without waiting, because commands must not wait. The next commit covers one that fails.

        A static member commits even if nothing is new: that shows that it lives.
        """
        owned = self._carried_out_of_ours()
        offsets = {partition: offset for partition, offset in owned.items() if self._committed.get(partition) != offset}
        if not offsets and self._stamps is not None and owned:
            offsets = dict([min(owned.items())])
        if offsets:
            self._send_commit(consumer, offsets, "" if self._stamps is None else self._stamps.next())

    def _send_commit(self, consumer: GroupConsumer, offsets: Mapping[int, int], stamp: str) -> None:
        self._commits_under_way += 1
        consumer.commit(offsets, stamp)

    def _carried_out_of_ours(self) -> dict[int, int]:
        return {partition: offset for partition, offset in self._carried_out.copy().items() if partition in self._owned}

    def _committed_or_not(self, offsets: Mapping[int, int], error: CommitRefused | None) -> None:
        self._commits_under_way -= 1
        self._refused = error
        if error is not None:
            _log.debug("commit_failed", error=str(error))
        else:
            self._committed.update(offsets)
            self._on_loop(self._confirmed, offsets)

    def _commit_and_wait(self, consumer: GroupConsumer) -> None:
        """Makes the last commit, within the time of `close`.

        While the group rebalances it refuses commits, and it proceeds with every poll. No other failure passes by polling.
        """
        stamp = "" if self._stamps is None else self._stamps.left()
        deadline = min(time.monotonic() + _LAST_COMMIT_S, self._stop_at_s - _LEAVE_S)
        while offsets := self._carried_out_of_ours():
            self._send_commit(consumer, offsets, stamp)
            while self._commits_under_way and time.monotonic() < deadline:
                self._poll_for_events(consumer)
            if not self._commits_under_way and self._refused is None:
                return
            if self._commits_under_way or self._refused is None or not self._refused.is_passing or time.monotonic() >= deadline:
                # What is not committed is read again, and known by its sequence number or answered.
                _log.info("last_commit_failed", error=str(self._refused or "no answer"))
                return
            self._poll_for_events(consumer)

    def _poll_for_events(self, consumer: GroupConsumer) -> None:
        """Polls for answers and changes. Records that it reads are not carried out, and not committed."""
        consumer.poll(_POLL_S, 1)
        self._follow_assignment(consumer)

    def _on_loop(self, method: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(method, *args)
        except RuntimeError:
            self._stopping.set()  # the loop is closed

    # --- on the loop --------------------------------------------------------------------------------------------------------

    def _assigned(self, partitions: frozenset[int]) -> None:
        assert self._listener is not None
        self._listener.partitions_assigned(partitions)

    def _revoked(self, partitions: frozenset[int]) -> None:
        assert self._listener is not None
        for partition in partitions:
            self._uncertain.pop(partition, None)
        self._listener.partitions_revoked(partitions)

    def _confirmed(self, offsets: Mapping[int, int]) -> None:
        """Runs the actions that waited for a commit of these offsets."""
        for partition, offset in offsets.items():
            waiting = self._uncertain.get(partition)
            while waiting and waiting[0][0] <= offset:
                for action in waiting.popleft()[1]:
                    action()

    def _deliver(self, partition: int, values: list[bytes], next_offset: int) -> None:
        assert self._listener is not None
        try:
            if actions := self._listener.commands(partition, values):
                waiting = self._uncertain.setdefault(partition, deque(maxlen=_UNCERTAIN_BATCHES))
                waiting.append((next_offset, actions))
            self._carried_out[partition] = next_offset
            self._is_uncertain |= bool(actions)
        finally:
            self._room.release()
