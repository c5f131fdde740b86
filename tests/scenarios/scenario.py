"""A small language for tests that read like a transcript of what a backend, a device and an engine do to one session.

    s = Scenario(max_inflight=2).connect()
    s.submit("a", "b", "c")
    assert s.sees() == ["PUBLISH 1 a", "PUBLISH 2 b"]
    s.puback(1)
    assert s.sees() == ["PUBLISH 3 c"]

Every step is an activation of its own, or part of one inside `with s.micro_batch():`. Every activation is run twice, as Spark may
do: once on the session and once on a session decoded from the blob of before. Both must give the same commands and the same
blob, so each scenario is a test of re-execution and of the codec, too. The session that goes on is always the decoded one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from state.commands import (
    AcceptConnection,
    CloseConnection,
    CloseFastPath,
    Command,
    DeadLetter,
    DropAwaitingRel,
    ForwardPublication,
    OpenFastPath,
    RecordTransition,
    SendPublish,
    SendPubRel,
    SendReceipt,
    WithdrawPublish,
)
from state.events import (
    CancelRequested,
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    DeadlineReached,
    Event,
    FastPathClosed,
    FastSent,
    MessageRefused,
    MessageSubmitted,
    PubAckReceived,
    PubCompReceived,
    PublishAccepted,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
    SessionPurged,
    Subscribed,
    Unsubscribed,
)
from state.inbound.awaiting_rel import content_hash
from state.model import Message, Outcome, Position, QoS, Routing, Subscription, Will
from state.records.receipts import Receipt
from state.records.routing import SourceKind, source_number
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings

CLIENT = "sensor-1"
START_MS = 1_700_000_000_000
PARTITION = 3
UPLINK = source_number(SourceKind.UPLINK, 0, "uplink")


def message(name: str, *, qos: int = 1, payload: bytes | None = None, **fields: Any) -> Message:
    """A message called `name`, whose payload is its name unless said otherwise."""
    fields.setdefault("topic", "t")
    return Message(message_id=name, payload=name.encode() if payload is None else payload, qos=QoS(qos), **fields)


def on_wire(command: Command) -> str | None:
    """Shows a command to a gateway as in a transcript; returns None for other commands."""
    match command:
        case SendPublish(packet_id=packet_id, qos=qos, dup=dup):
            name = command.payload.decode(errors="replace")[:20]
            return f"PUBLISH {packet_id} {name}" + (" DUP" if dup else "") if qos else f"PUBLISH qos0 {name}"
        case SendPubRel(packet_id=packet_id, reason_code=0):
            return f"PUBREL {packet_id}"
        case SendPubRel(packet_id=packet_id, reason_code=reason_code):
            return f"PUBREL {packet_id} 0x{reason_code:02X}"
        case AcceptConnection(session_present=present):
            return "CONNACK present" if present else "CONNACK"
        case CloseConnection(reason_code=reason_code):
            return f"CLOSE 0x{reason_code:02X}"
        case WithdrawPublish(packet_ids=packet_ids):
            return f"WITHDRAW {packet_ids}"
        case DropAwaitingRel(packet_ids=packet_ids):
            return f"FORGET {packet_ids}"
        case OpenFastPath(after=after):
            return f"OPEN {after.offset}"
        case CloseFastPath():
            return "CLOSE PATH"
        case _:
            return None


class Scenario:
    """A session and its surroundings. `commands`: of the whole scenario; `last`: of the latest activation.

    By default it does not read ahead, so that few messages fill a window.
    """

    def __init__(self, *, settings: SessionSettings | None = None, **changes: Any) -> None:
        self.settings = settings or SessionSettings(**{"prefetch": 0, "max_backlog_bytes": 0} | changes)
        self.now_ms = START_MS
        self.commands: list[Command] = []
        self.last: tuple[Command, ...] = ()
        self.connection_id = 0
        self.session = Session(client_id=CLIENT, settings=self.settings)
        self._seen = 0
        self._batch: list[Event] | None = None
        self._publications = 0

    # --- the engine ---------------------------------------------------------------------------------------------------------

    def handle(self, *events: Event) -> tuple[Command, ...]:
        """Executes one activation, twice (see the module's docstring)."""
        if self._batch is not None:
            self._batch.extend(events)
            return ()
        blob = encode_session(self.session)
        again = decode_session(blob, client_id=CLIENT, settings=self.settings)
        self.last = self.session.handle_all(events, now_ms=self.now_ms)
        assert again.handle_all(events, now_ms=self.now_ms) == self.last, "a re-executed activation gave other commands"
        after = encode_session(self.session)
        assert encode_session(again) == after, "a re-executed activation left another state"
        self.session = decode_session(after, client_id=CLIENT, settings=self.settings)
        deadline_ms = self.session.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > self.now_ms, "the session asks to be called at once: a busy loop"
        self.commands.extend(self.last)
        return self.last

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Collects what is done inside for one activation."""
        self._batch = events = []
        yield
        self._batch = None
        self.handle(*events)

    def after(self, seconds: float) -> Self:
        """Time passes, and the host calls at every deadline on the way."""
        until_ms = self.now_ms + round(seconds * 1_000)
        while (deadline_ms := self.session.next_deadline_ms()) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.handle(DeadlineReached())
        self.now_ms = until_ms
        return self

    def later(self, seconds: float) -> Self:
        """Time passes and nobody calls: the engine was down or busy."""
        self.now_ms += round(seconds * 1_000)
        return self

    # --- the backend --------------------------------------------------------------------------------------------------------

    def submit(self, *names: str, explicit_id: bool = False, at: Position | None = None, **fields: Any) -> Self:
        """at: where the message stands in its topic."""
        for name in names:
            given = {"accepted_ms": self.now_ms, **fields}
            self.handle(MessageSubmitted(message=message(name, **given), explicit_id=explicit_id, position=at))
        return self

    def route(
        self,
        *names: str,
        mark: int,
        entry: tuple[int, int] | None = None,
        source: int = UPLINK,
        at: Position | None = None,
        qos: int = 1,
        granted: int = 2,
        is_named: bool = False,
        share: str = "",
        tried: tuple[str, ...] = (),
        ids: tuple[int, ...] = (),
        **fields: Any,
    ) -> Self:
        """The matcher has found this client in a list of subscriptions.

        entry: connection and version of the list; None = what the present connection began with.
        granted: by the matching subscriptions.
        """
        connection_id, version = entry or (self.connection_id, 0)
        for name in names:
            routing = Routing(
                source=source,
                mark=mark,
                connection_id=connection_id,
                version=version,
                qos=QoS(granted),
                subscription_ids=ids,
                share=share,
                is_named=is_named,
                tried=tried,
            )
            self.submit(name, explicit_id=is_named, at=at, qos=min(qos, granted), routing=routing, **fields)
        return self

    def refuse(self, name: str, detail: str, *, at: Position | None = None) -> Self:
        self.handle(MessageRefused(message=message(name), detail=detail, position=at))
        return self

    def cancel(self, message_id: str, *, at: Position | None = None) -> Self:
        self.handle(CancelRequested(message_id=message_id, position=at))
        return self

    # --- the device and its gateway -----------------------------------------------------------------------------------------

    def connect(
        self,
        *,
        version: int = 4,
        clean_start: bool = False,
        expiry_s: int | None = 3_600,
        connection_id: int | None = None,
        **fields: Any,
    ) -> Self:
        """connection_id: of a gateway with a clock of its own. What the device says afterwards, it says on the latest one."""
        connection_id = connection_id or self.connection_id + 1
        self.connection_id = max(self.connection_id, connection_id)
        self.handle(
            ClientConnected(
                connection_id=connection_id,
                commands_partition=PARTITION,
                protocol_version=version,
                clean_start=clean_start,
                session_expiry_interval_s=expiry_s,
                **fields,
            )
        )
        return self

    def lose_connection(
        self, connection_id: int | None = None, *, reason: str = "cable", reconnect_grace_ms: int = 0, unanswered: int = 0
    ) -> Self:
        """reconnect_grace_ms: other than 0 when it is the gateway that ends it."""
        self.handle(
            ConnectionLost(
                connection_id=connection_id or self.connection_id,
                reason=reason,
                reconnect_grace_ms=reconnect_grace_ms,
                unanswered=unanswered,
            )
        )
        return self

    def purge(self) -> Self:
        self.handle(SessionPurged())
        return self

    def disconnect(self, reason_code: int = 0, *, expiry_s: int | None = None) -> Self:
        self.handle(
            ClientDisconnected(connection_id=self.connection_id, reason_code=reason_code, session_expiry_interval_s=expiry_s)
        )
        return self

    def puback(
        self,
        *packet_ids: int,
        reason_code: int = 0,
        connection_id: int | None = None,
        reason: str = "",
        logged_ms: int = 0,
    ) -> Self:
        """logged_ms: when it was logged; 0 = the host does not say it."""
        for packet_id in packet_ids:
            self.handle(
                PubAckReceived(
                    connection_id=connection_id or self.connection_id,
                    packet_id=packet_id,
                    reason_code=reason_code,
                    reason=reason,
                    logged_ms=logged_ms,
                )
            )
        return self

    def fast_sent(
        self,
        name: str,
        packet_id: int,
        *,
        at: Position,
        previous: int,
        qos: int = 1,
        connection_id: int | None = None,
        sent_ms: int | None = None,
        explicit_id: bool = False,
        logged_ms: int = 0,
        is_granted: bool = True,
        **fields: Any,
    ) -> Self:
        """The gateway has taken an offer. qos: with which it sends; the message's own is among the fields."""
        given = {"accepted_ms": self.now_ms, "qos": qos, **fields}
        self.handle(
            FastSent(
                connection_id=connection_id or self.connection_id,
                position=at,
                previous=previous,
                packet_id=packet_id,
                qos=QoS(qos),
                message=message(name, **given),
                sent_ms=self.now_ms if sent_ms is None else sent_ms,
                explicit_id=explicit_id,
                is_granted=is_granted,
                logged_ms=logged_ms,
            )
        )
        return self

    def path_closed(self, connection_id: int | None = None) -> Self:
        self.handle(FastPathClosed(connection_id=connection_id or self.connection_id))
        return self

    def pubrec(self, *packet_ids: int, reason_code: int = 0, pubrel_sent: bool = False, logged_ms: int = 0) -> Self:
        for packet_id in packet_ids:
            self.handle(
                PubRecReceived(
                    connection_id=self.connection_id,
                    packet_id=packet_id,
                    reason_code=reason_code,
                    pubrel_sent=pubrel_sent,
                    logged_ms=logged_ms,
                )
            )
        return self

    def pubcomp(self, *packet_ids: int, reason_code: int = 0, logged_ms: int = 0) -> Self:
        for packet_id in packet_ids:
            self.handle(
                PubCompReceived(
                    connection_id=self.connection_id, packet_id=packet_id, reason_code=reason_code, logged_ms=logged_ms
                )
            )
        return self

    def publish(self, packet_id: int, name: str, *, dup: bool = False, connection_id: int | None = None, **fields: Any) -> Self:
        """The device publishes at QoS 2."""
        self._publications += 1
        self.handle(
            PublishReceived(
                connection_id=connection_id or self.connection_id,
                packet_id=packet_id,
                topic="up",
                payload=name.encode(),
                dup=dup,
                publication_id=f"events-0-{self._publications}",
                **fields,
            )
        )
        return self

    def accept(
        self,
        packet_id: int,
        name: str,
        *,
        dup: bool = False,
        repeats: str = "",
        since_ms: int = 0,
        connection_id: int | None = None,
    ) -> Self:
        """The device publishes at QoS 2, and its gateway hands the publication on.

        Args:
            repeats: Id of the publication that it repeats.
            since_ms: By the log; of a repetition that of the first PUBLISH.
        """
        self._publications += 1
        self.handle(
            PublishAccepted(
                connection_id=connection_id or self.connection_id,
                packet_id=packet_id,
                content=content_hash("up", name.encode()),
                publication_id=repeats or f"d:{self.connection_id}:{self._publications}",
                dup=dup,
                is_repetition=bool(repeats),
                since_ms=since_ms or self.now_ms,
            )
        )
        return self

    def pubrel(self, *packet_ids: int, connection_id: int | None = None, logged_ms: int = 0) -> Self:
        for packet_id in packet_ids:
            connection = connection_id or self.connection_id
            self.handle(PubRelReceived(connection_id=connection, packet_id=packet_id, logged_ms=logged_ms))
        return self

    def subscribe(
        self, topic_filter: str, qos: int, *, connection_id: int | None = None, version: int = 0, **options: Any
    ) -> Self:
        subscription = Subscription(topic_filter=topic_filter, qos=QoS(qos), **options)
        connection = connection_id or self.connection_id
        self.handle(Subscribed(connection_id=connection, subscriptions=(subscription,), version=version))
        return self

    def unsubscribe(self, topic_filter: str, *, version: int = 0) -> Self:
        self.handle(Unsubscribed(connection_id=self.connection_id, topic_filters=(topic_filter,), version=version))
        return self

    # --- what can be seen from outside --------------------------------------------------------------------------------------

    def sees(self) -> list[str]:
        """Returns what has been sent towards the device since the last call."""
        new, self._seen = self.commands[self._seen :], len(self.commands)
        return [line for command in new if (line := on_wire(command)) is not None]

    def sent(self, kind: type[Command]) -> list[Any]:
        """Returns the commands of a kind in the whole scenario."""
        return [command for command in self.commands if isinstance(command, kind)]

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Returns the outcomes by message id. Raises AssertionError if a message has two receipts."""
        receipts = self.receipts
        by_id = {receipt.message_id: receipt.outcome for receipt in receipts}
        assert len(by_id) == len(receipts), f"a message has two receipts: {receipts}"
        return by_id

    @property
    def receipts(self) -> list[Receipt]:
        return [command.receipt for command in self.sent(SendReceipt)]

    def receipt(self, name: str) -> Receipt:
        (receipt,) = (receipt for receipt in self.receipts if receipt.message_id == name)
        return receipt

    @property
    def dead_letters(self) -> list[tuple[str, Outcome]]:
        return [(letter.message.message_id, letter.reason) for letter in self.sent(DeadLetter)]

    @property
    def uplink(self) -> list[str]:
        """Payloads handed to the backends."""
        return [forwarded.payload.decode() for forwarded in self.sent(ForwardPublication)]

    @property
    def ledger(self) -> list[str]:
        return [row.transition.value for row in self.sent(RecordTransition)]

    @property
    def attempts(self) -> dict[str, int]:
        """Attempts that count, of everything that the session holds."""
        held = [entry.delivery for entry in self.session.outbound.window] + list(self.session.outbound.queue)
        return {delivery.message.message_id: delivery.attempts for delivery in held}

    @property
    def crashes(self) -> dict[str, int]:
        """Connections that the client has lost over the messages of the window."""
        return {entry.delivery.message.message_id: entry.delivery.crashes for entry in self.session.outbound.window}

    @property
    def queued(self) -> list[str]:
        return [delivery.message.message_id for delivery in self.session.outbound.queue]

    @property
    def packet_ids(self) -> list[int]:
        """Returns the packet ids in the window, in order of first transmission."""
        return [entry.packet_id for entry in self.session.outbound.window]


def will(name: str = "gone", **fields: Any) -> Will:
    return Will(topic="status", payload=name.encode(), **fields)
