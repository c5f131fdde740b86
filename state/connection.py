"""The session's side of the one connection that its client may have."""

from dataclasses import dataclass

from state.model import Will


@dataclass(slots=True, kw_only=True)
class Connection:
    """partition: of `inflight.commands`, where the gateway that holds the socket reads.

    send_quota: QoS 1 and 2 messages that may be unacknowledged on the wire, min(`max_inflight`, Receive Maximum).
    receive_maximum: the client's own part of it. will: None = none, or withdrawn by a DISCONNECT.
    sequence: of the last command sent to this connection.
    lease_id: of the gateway's lease; the session only keeps it, for whoever ends the connections of a lease.
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

    def next_sequence(self) -> int:
        """Numbers the commands of this connection 1, 2, 3 …; a gateway drops the repetitions of a re-executed batch by it."""
        self.sequence += 1
        return self.sequence
