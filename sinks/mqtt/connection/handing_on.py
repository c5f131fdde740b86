"""Hands on publications of QoS 2: from `inflight.events`, where the session reads of them, to `inflight.uplink`.

1. `PublishAccepted` is appended. It has the `inflight-id`.
2. When Kafka has it, the gateway looks whether a later connection of the client is known: it asks where `inflight.subscriptions`
   ends *then*, and reads the marks up to there. A CONNECT that may resume a session is in the log only behind its mark
   (handshake.py). So if there is no later mark, the event is before any later CONNECT, and the session counts it.
3. If so, the record of `inflight.uplink` is appended, and PUBREC follows when Kafka has it. Otherwise nothing is handed on or
   answered, and the connection ends: the device repeats the publication on its later connection.

A session that ends with its connection has no mark, and no later connection can resume it. So step 2 is left out.

Between steps 2 and 3 a gateway may stand still while the device repeats the publication elsewhere. So the record says since when,
and on which connection, and matchers look whether it is a copy if they know of a later connection (sinks/routing/copies.py).

A device may be gone after its PUBLISH. What it has published is handed on all the same, unless the gateway is to blame for the
end of the connection, or the engine has ended it.
"""

from dataclasses import dataclass, field

from sinks.mqtt.connection.append_queue import Append, AppendQueue
from state.records.uplink import MAY_BE_COPY_SINCE, connection_header, may_be_copy_header


@dataclass(slots=True, eq=False)
class HandingOn:
    """The publications of one connection between steps 1 and 3, in the order in which the device has sent them.

    Attributes:
        needs_look: A later connection may resume the session, so step 2 is necessary.
    """

    _records: AppendQueue
    needs_look: bool = False
    _waiting: list[Append] = field(default_factory=list)
    _looked_for: int = 0
    """The number of those for which a look is under way; 0 = none is."""
    _is_stopped: bool = False

    def accepted(self, record: Append) -> None:
        """Kafka has the event of a publication.

        Args:
            record: That of `inflight.uplink`.
        """
        if self._is_stopped:
            self._records.give_up(record)
        elif self.needs_look:
            self._waiting.append(record)
        else:
            self._records.hand_on(record)

    def begin_look(self) -> bool:
        """Returns True if the host has to look now; then call `looked`."""
        if self._looked_for or not self._waiting:
            return False
        self._looked_for = len(self._waiting)
        return True

    def looked(self, connection_id: int, *, is_newest: bool, asked_ms: int) -> None:
        """Hands on, or gives up, what waited when the look began.

        Args:
            asked_ms: When it began, in milliseconds since 1970 by the brokers.
        """
        looked_for, self._waiting = self._waiting[: self._looked_for], self._waiting[self._looked_for :]
        self._looked_for = 0
        for record in looked_for:
            if not is_newest:
                self._records.give_up(record)
                continue
            headers = record.headers
            assert headers is not None, "every record of uplink has some"
            if all(name != MAY_BE_COPY_SINCE for name, _ in headers):  # a repetition has said it
                record.headers = [*headers, may_be_copy_header(asked_ms), connection_header(connection_id)]
            self._records.hand_on(record)

    def stop(self) -> None:
        """Hands on nothing more: the gateway is to blame for the end of the connection, or the engine has ended it."""
        self._is_stopped, self._looked_for = True, 0
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self._records.give_up(record)
