"""The session's side of the one connection that its client may have."""

from dataclasses import dataclass
from enum import Enum
from typing import Self

from state.events import Capability, ClientConnected
from state.model import Position, Will


class PathState(Enum):
    """CLOSING: CloseFastPath has been sent, and FastPathClosed has not been read."""

    CLOSED = 0
    OPEN = 1
    CLOSING = 2


@dataclass(slots=True, kw_only=True)
class SessionFastPath:
    """What the gateway of a connection may send before the session has read it (docs/protocol.md, section 7).

    opened_after: `after` of the first grant since the path was last closed; None = there was none yet.
    adopted: the highest offset of a FastSent of this connection that was read, in the partition of `opened_after`; -1 = none.
    since_grant: how many FastSent were read since the last grant; ids_told: digests of message ids since one that had them all.
    has_route: routers have been told about the connection. over_limit: the fence has kept the queue from dropping messages.
    """

    state: PathState = PathState.CLOSED
    opened_after: Position | None = None
    adopted: int = -1
    since_grant: int = 0
    digests_sent: int = 0
    has_route: bool = False
    over_limit: bool = False


@dataclass(slots=True, kw_only=True)
class SessionConnection:
    """partition: of `inflight.commands`, where the gateway that holds the socket reads.

    send_quota: QoS 1 and 2 messages that may be unacknowledged on the wire, min(`max_inflight`, Receive Maximum).
    receive_maximum: the client's own part of it. will: None = none, or withdrawn by a DISCONNECT.
    sequence: of the last command sent to this connection.
    lease_id: of the gateway's lease; the session only keeps it, for whoever ends the connections of a lease.
    fast_path: None = the gateway has no such thing.
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
        """The connection that the event has begun."""
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
        """Numbers the commands of this connection 1, 2, 3 …; a gateway drops the repetitions of a re-executed batch by it."""
        self.sequence += 1
        return self.sequence

    @property
    def fence(self) -> SessionFastPath | None:
        """The fast path while its gateway may send by it, None = it may not: nothing stands in the way of an ending."""
        return None if self.fast_path is None or self.fast_path.state is PathState.CLOSED else self.fast_path

    @property
    def fast_path_closing(self) -> bool:
        """FastPathClosed is on its way, or the end of the connection: what waits for it needs no timer."""
        return self.fast_path is not None and self.fast_path.state is PathState.CLOSING

    def may_be_sending(self, position: Position | None) -> bool:
        """Whether the gateway may have taken the message from there and the session not know. None = it has not."""
        fence = self.fence
        if fence is None or position is None:
            return False
        opened_after = fence.opened_after
        assert opened_after is not None, "a grant has opened the path"
        return position.partition == opened_after.partition and position.offset > opened_after.offset
