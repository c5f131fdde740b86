"""Reads all topics of a run as they grow, decodes them, and gives the history of one client.

It is a thread, because kafka-python blocks. Its records only grow; the run and the account read them at any time.
"""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from inflight.campaign.kafka import CAMPAIGN_HEADER
from inflight.campaign.records import CampaignTable
from state.commands import AcceptConnection, CloseConnection
from state.events import ClientConnected, ClientDisconnected, ConnectionLost
from state.records.commands import decode_command_batch
from state.records.dead_letters import LAST_DEATH
from state.records.events import WAKE_UP_KEY, decode_events
from state.records.messages import MESSAGE_ID
from state.records.presence import GONE_CONNECTION, GONE_SINCE, decode_presence
from state.records.subscriptions import decode_subscriptions
from state.records.uplink import INFLIGHT_ID, MICRO_BATCH
from trials.faults.account.facts import LoggedConnection, LoggedEnd, Outcome, Received, SaidPresence, SessionRow, Status, Step

TOPICS = (
    "messages",
    "events",
    "commands",
    "uplink",
    "receipts",
    "ledger",
    "dead-letters",
    "subscriptions",
    "presence",
    "campaigns",
)
_PREFIX = "inflight."
_POLL_MS = 200


@dataclass(frozen=True, slots=True)
class LogRecord:
    """topic: without the prefix. time_s: when Kafka got it; of an event when it was read, because its own time is that of its
    gateway, whose clock may be wrong. Seconds since 1970.
    """

    topic: str
    partition: int
    offset: int
    time_s: float
    client_id: str
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    def decoded(self) -> Any:
        """Decodes the record for display and account."""
        if self.topic == "events":
            return decode_events(self.value)
        if self.topic == "commands":
            return decode_command_batch(self.value).commands
        if self.topic in ("receipts", "ledger"):
            return msgspec.json.decode(self.value)
        if self.topic == "subscriptions" and self.value:
            return decode_subscriptions(self.value)
        if self.topic == "presence" and self.value:
            return decode_presence(self.value)
        return dict(self.headers) | {"payload": self.value}


class LogReader:
    """A context; the thread ends with it. records: by topic, in the order of reading, which is the log's for each client.
    campaigns: as they are now.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self.records: dict[str, list[LogRecord]] = {topic: [] for topic in TOPICS}
        self.campaigns = CampaignTable()
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap_servers, group_id=None, enable_auto_commit=False, isolation_level="read_committed"
        )
        self._partitions = [
            TopicPartition(_PREFIX + topic, number)
            for topic in TOPICS
            for number in sorted(self._consumer.partitions_for_topic(_PREFIX + topic) or ())
        ]
        self._caught_up_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._consumer.close()

    @property
    def caught_up_s(self) -> float:
        """The time up to which everything in the log has been read."""
        return self._caught_up_s

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning(*self._partitions)
        looked_s = 0.0
        while not self._stop.is_set():
            for batch in self._consumer.poll(timeout_ms=_POLL_MS).values():
                for record in batch:
                    self._take(record)
            if time.time() - looked_s > 1:
                looked_s = time.time()
                with contextlib.suppress(KafkaError):  # it is one of those that are killed
                    ends = self._consumer.end_offsets(self._partitions)
                    if all(self._consumer.position(partition) >= end for partition, end in ends.items()):
                        self._caught_up_s = looked_s

    def _take(self, record: Any) -> None:
        if record.key == WAKE_UP_KEY:
            return
        topic = record.topic.removeprefix(_PREFIX)
        if topic == "campaigns":
            self.campaigns.read([(record.key or b"", record.value)])
        self.records[topic].append(
            LogRecord(
                topic,
                record.partition,
                record.offset,
                time.time() if topic == "events" else record.timestamp / 1_000,
                (record.key or b"").decode(errors="replace"),
                record.value or b"",
                tuple(record.headers),
            )
        )

    # --- what the account wants ---------------------------------------------------------------------------------------------

    def uplink(self) -> list[Received]:
        def received(record: LogRecord) -> Received:
            headers = dict(record.headers)
            batch_ms = headers.get(MICRO_BATCH)
            return Received(
                client_id=record.client_id,
                payload=record.value,
                inflight_id=headers[INFLIGHT_ID].decode(),
                time_s=record.time_s,
                batch_s=None if batch_ms is None else int(batch_ms) / 1_000,
            )

        return [received(record) for record in self.records["uplink"]]

    def receipts(self) -> list[Outcome]:
        def outcome(said: Any) -> Outcome:
            return Outcome(
                message_id=said["message_id"],
                client_id=said["client_id"],
                outcome=said["outcome"],
                final=said["final"],
                value=msgspec.json.encode(said),
                fast_path=said["fast_path"],
                detail=said["detail"],
            )

        decoded = [record.decoded() for record in self.records["receipts"]]
        return [outcome(said) for one in decoded for said in (one if isinstance(one, list) else [one])]

    def sessions(self) -> list[SessionRow]:
        """The rows about connections and ends of sessions; a record that a repeated micro-batch has written again is left out."""
        return self._session_rows(frozenset(Step) - {Step.REFUSED})

    def refusals(self) -> list[SessionRow]:
        """Returns `Facts.refusals`."""
        return self._session_rows(frozenset({Step.REFUSED}))

    def _session_rows(self, steps: frozenset[Step]) -> list[SessionRow]:
        known = {step.value: step for step in steps}
        rows: list[SessionRow] = []
        for record in {(record.client_id, record.value): record for record in self.records["ledger"]}.values():
            for row in record.decoded():
                step = known.get(row["transition"])
                if step is None:
                    continue
                rows.append(
                    SessionRow(client_id=record.client_id, step=step, time_s=row["time_ms"] / 1_000, detail=row.get("detail", ""))
                )
        return rows

    def presence(self) -> list[SaidPresence]:
        return [_said(record) for record in self.records["presence"]]

    def copies(self, campaign_id: str) -> int:
        """Returns how many messages of a campaign are in the log beyond the first to each client."""
        name = campaign_id.encode()
        of_campaign = [
            headers for record in self.records["messages"] if (headers := dict(record.headers)).get(CAMPAIGN_HEADER) == name
        ]
        return len(of_campaign) - len({headers[MESSAGE_ID] for headers in of_campaign})

    def connections(self) -> list[LoggedConnection]:
        """Returns the connections that sessions have accepted, each with its first end in the log."""
        accepted, closed = set(), set()
        for identity, command in self._commands():
            if isinstance(command, AcceptConnection):
                accepted.add(identity)
            elif isinstance(command, CloseConnection):
                closed.add(identity)
        events: dict[str, list[tuple[float, Any]]] = defaultdict(list)
        for record, event in self._events():
            if isinstance(event, ClientConnected):
                if (record.client_id, event.connection_id) not in accepted:
                    continue
            elif not isinstance(event, ClientDisconnected | ConnectionLost):
                continue
            events[record.client_id].append((record.time_s, event))
        return [
            connection for client_id, of_client in events.items() for connection in connections_in(client_id, of_client, closed)
        ]

    def ended_ids(self) -> frozenset[str]:
        """Returns `Facts.ended_ids`."""
        dead = (dict(record.headers) for record in self.records["dead-letters"])
        return frozenset(each[MESSAGE_ID].decode() for each in dead if each[f"{LAST_DEATH}reason"] == b"session_ended")

    def refused(self) -> frozenset[bytes]:
        """Returns `Facts.refused`, without CONNECTs that were accepted under another id."""
        wills = {
            (record.client_id, event.connection_id): event.will.payload
            for record, event in self._events()
            if isinstance(event, ClientConnected) and (event.clean_start or event.claim) and event.will is not None
        }
        refused, accepted = set(), set()
        for identity, command in self._commands():
            if isinstance(command, AcceptConnection):
                accepted.add(wills.get(identity))
            elif isinstance(command, CloseConnection) and identity in wills:
                refused.add(wills[identity])
        return frozenset(refused - accepted)

    def _events(self) -> Iterator[tuple[LogRecord, Any]]:
        """Yields all events, with their records."""
        for record in self.records["events"]:
            for event in record.decoded():
                yield record, event

    def _commands(self) -> Iterator[tuple[tuple[str, int], Any]]:
        """Yields all commands, with client and connection."""
        for record in self.records["commands"]:
            for command in record.decoded():
                yield (record.client_id, command.connection_id), command

    def history(self, client_id: str, of: bytes = b"") -> Iterator[str]:
        """Yields a client's records as text, in order of time. of: only those about this payload or id, and about connections."""
        about = ("Connected", "Disconnected", "ConnectionLost", "AcceptConnection", "CloseConnection", "session_ended")
        records = [record for topic in self.records.values() for record in list(topic) if record.client_id == client_id]
        for record in sorted(records, key=lambda record: (record.time_s, record.topic, record.offset)):
            text = repr(record.decoded())
            if not of or of in record.value or of.decode(errors="replace") in text or any(word in text for word in about):
                clock = time.strftime("%H:%M:%S", time.localtime(record.time_s)) + f"{record.time_s % 1:.3f}"[1:]
                yield f"{clock} {record.topic}-{record.partition}@{record.offset} {text}"

    def route(self, client_id: str, payload: bytes) -> Iterator[str]:
        """Yields the way of a publication to a device: all records about it, and about the device's subscriptions."""
        ids = [record.inflight_id for record in self.uplink() if record.payload == payload]
        about = [payload.decode(), *ids]
        records = [record for topic in self.records.values() for record in list(topic)]
        for record in sorted(records, key=lambda record: (record.time_s, record.topic, record.offset)):
            is_own = record.client_id == client_id and record.topic == "subscriptions"
            if is_own or payload in record.value or any(each.encode() in record.value for each in ids):
                yield _line(record, about)


def _line(record: LogRecord, about: Iterable[str]) -> str:
    """Returns a record as text; of a list of many things only those that are meant."""
    what = record.decoded()
    if isinstance(what, list | tuple) and len(what) > 1:
        what = [each for each in what if any(text in repr(each) for text in about)] or what
    clock = time.strftime("%H:%M:%S", time.localtime(record.time_s)) + f"{record.time_s % 1:.3f}"[1:]
    return f"{clock} {record.topic}-{record.partition}@{record.offset} {record.client_id} {what!r}"


def _said(record: LogRecord) -> SaidPresence:
    if record.value:
        said = record.decoded()
        status, number, since_ms = Status.ONLINE if said.online else Status.OFFLINE, int(said.connection_id), said.since_ms
    else:
        headers = dict(record.headers)
        status, number, since_ms = Status.GONE, int(headers[GONE_CONNECTION]), int(headers[GONE_SINCE])
    return SaidPresence(
        client_id=record.client_id, status=status, connection_id=number, time_s=record.time_s, since_s=since_ms / 1_000
    )


def connections_in(
    client_id: str, events: Iterable[tuple[float, Any]], closed: set[tuple[str, int]]
) -> Iterator[LoggedConnection]:
    """The first of what ends a connection: its own end, or the next connection."""
    current: ClientConnected | None = None
    seen: set[int] = set()  # ids need not grow: a session that has ended without a trace knows none
    end, end_s = LoggedEnd.NOTHING, None
    for time_s, event in events:
        if isinstance(event, ClientConnected):
            if event.connection_id in seen:
                continue  # the same record once more
            seen.add(event.connection_id)
            if current is not None:
                if end is LoggedEnd.NOTHING:
                    end, end_s = LoggedEnd.OTHER, time_s
                yield _connection(client_id, current, end, end_s, closed, next_s=time_s)
            current, end, end_s = event, LoggedEnd.NOTHING, None
        elif current is not None and event.connection_id == current.connection_id and end is LoggedEnd.NOTHING:
            goodbye = isinstance(event, ClientDisconnected) and event.reason_code == 0
            end, end_s = LoggedEnd.GOODBYE if goodbye else LoggedEnd.OTHER, time_s
    if current is not None:
        yield _connection(client_id, current, end, end_s, closed, next_s=None)


def _connection(
    client_id: str,
    event: ClientConnected,
    end: LoggedEnd,
    end_s: float | None,
    closed: set[tuple[str, int]],
    *,
    next_s: float | None,
) -> LoggedConnection:
    return LoggedConnection(
        client_id=client_id,
        will=event.will.payload if event.will is not None else b"",
        end=end,
        end_s=end_s,
        closed=(client_id, event.connection_id) in closed,
        next_s=next_s,
    )
