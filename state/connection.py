"""Holds the session's half of the one connection that its client may have."""

from dataclasses import dataclass
from enum import Enum
from typing import Self

from state.events import Capability, ClientConnected
from state.model import Message, Position, Will


class PathState(Enum):
    """CLOSING: CloseFastPath has been sent, and FastPathClosed has not been read."""

    CLOSED = 0
    OPEN = 1
    CLOSING = 2


@dataclass(slots=True, kw_only=True)
class SessionFastPath:
    """Records what the gateway of a connection may send before the session has read it (protocol.md, section 7).

    Attributes:
        opened_after: `after` of the first grant since the path was last closed; None = no grant yet.
        adopted: The highest offset of a FastSent of this connection that was read, in the partition of `opened_after`; -1 = none.
        since_grant: Number of FastSent read since the last grant.
        digests_sent: Number of message-id digests sent since the last grant that carried all of them.
        has_route: Routers know the connection: there was a grant.
        over_limit: The queue is above its limits because the fence forbids dropping.
        began_session: The path was opened for what is routed, and was not closed since (grants.py, rules 5 and 6).
    """

    state: PathState = PathState.CLOSED
    opened_after: Position | None = None
    adopted: int = -1
    since_grant: int = 0
    digests_sent: int = 0
    has_route: bool = False
    over_limit: bool = False
    began_session: bool = False


@dataclass(slots=True, kw_only=True)
class SessionConnection:
    """The session's record of a connection.

    Attributes:
        partition: The partition of `inflight.commands` that the connection's gateway reads.
        send_quota: QoS 1 and 2 messages that may be unacknowledged on the wire, min(`max_inflight`, Receive Maximum).
        receive_maximum: The client's Receive Maximum.
        will: None if there is none, or if a DISCONNECT withdrew it.
        sequence: Number of the last command sent to this connection.
        lease_id: The gateway's lease. The session stores it for the engine, which ends the connections of an expired lease.
        fast_path: None if the gateway has no fast path.
    """

    connection_id: int
    partition: int
    protocol_version: int
    send_quota: int
    receive_maximum: int
    maximum_packet_size_bytes: int | None = None
    will: Will | None = None
    sequence: int = 0
    lease_id: str = ""
    fast_path: SessionFastPath | None = None

    @classmethod
    def of(cls, event: ClientConnected, *, send_quota: int) -> Self:
        """Returns the connection that the event began."""
        return cls(
            connection_id=event.connection_id,
            partition=event.commands_partition,
            protocol_version=event.protocol_version,
            send_quota=send_quota,
            receive_maximum=event.receive_maximum,
            maximum_packet_size_bytes=event.maximum_packet_size_bytes,
            will=event.will,  # [MQTT-3.1.2-7]
            lease_id=event.lease_id,
            fast_path=SessionFastPath() if event.capabilities & Capability.FAST_PATH else None,
        )

    def next_sequence(self) -> int:
        """Numbers the commands of this connection 1, 2, 3 …

        A gateway drops the commands of a re-executed micro-batch by this number.
        """
        self.sequence += 1
        return self.sequence

    @property
    def fence(self) -> SessionFastPath | None:
        """The fast path while its gateway may send by it.

        None means that the fast path is closed, so the session may expire, drop or give up messages.
        """
        return None if self.fast_path is None or self.fast_path.state is PathState.CLOSED else self.fast_path

    @property
    def fast_path_closing(self) -> bool:
        """Says that FastPathClosed, or the end of the connection, is awaited. Nothing that waits for it needs a timer."""
        return self.fast_path is not None and self.fast_path.state is PathState.CLOSING

    def may_be_sending(self, position: Position | None, message: Message) -> bool:
        """Returns True if the gateway may have accepted the message at this position without the session knowing.

        Args:
            position: None = no gateway can have accepted the message.
        """
        fence = self.fence
        if fence is None or position is None:
            return False
        if fence.began_session and message.routing is not None:
            return True
        after = fence.opened_after
        return after is not None and position.partition == after.partition and position.offset > after.offset
