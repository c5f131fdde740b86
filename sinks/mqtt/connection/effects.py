"""The result of a call into a connection: everything that the connection wants done."""

from typing import Final, NamedTuple, TypeAlias

import msgspec

from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.connection.append_queue import Append
from sinks.mqtt.connection.left_session import NO_LEFT_SESSIONS, LeftSessions
from sinks.mqtt.known_tables import NO_TABLES, KnownTables
from state.commands import CloseConnection
from state.model import ClientId, Position


class Register(msgspec.Struct, frozen=True):
    """A CONNECT was read: give the connection an id and its CONNECT a turn, and answer by `WireConnection.registered`.

    Attributes:
        client_id: Empty = the client leaves the choice to the server.
        refusal: What the engine has answered to the id before this one, because it knows a newer connection; that CONNECT had its
            turn. None = it is the first id.
    """

    client_id: ClientId
    refusal: CloseConnection | None = None


class LogIn(msgspec.Struct, frozen=True):
    """Verify the login, and answer by `WireConnection.logged_in`, now or later."""

    connect: Connect
    client_id: ClientId


class LookUp(msgspec.Struct, frozen=True):
    """Have the tables of this process brought up to the log, and answer by `WireConnection.looked_up`."""


class LookForLater(msgspec.Struct, frozen=True):
    """Find out whether a later connection of the client is known, and answer by `WireConnection.looked_for_later`."""


class Announce(msgspec.Struct, frozen=True):
    """The login holds, and the engine is told of the connection. Nothing is to be answered."""


class TakeOver(msgspec.Struct, frozen=True):
    """CONNECT is in the log: end the client's earlier connections here by `WireConnection.taken_over`. Nothing is to be answered.
    The session ends them, too, wherever they are, when it reads CONNECT."""


ANNOUNCE: Final = Announce()
TAKE_OVER: Final = TakeOver()
LOOK_UP: Final = LookUp()
LOOK_FOR_LATER: Final = LookForLater()
Request: TypeAlias = Register | LogIn | LookUp | LookForLater | Announce | TakeOver


class Effects(msgspec.Struct, frozen=True):
    """The actions that a connection requests by one call.

    Attributes:
        write: bytes for the device.
        appends: records for Kafka, to be handed over in this order; then call `WireConnection.confirm` once for each.
        requests: carry them out last, because their answers are calls that have effects of their own.
        wants_data: whether to read from the socket. False is our back pressure on the device.
        deadline_ms: when to call `WireConnection.tick`; earlier it does nothing. None = never.
        close: the connection is over. Write what is here, then close the socket.
        held_bytes: received and not worked off, and messages that wait for the device; see sinks.mqtt.limits.buffered.
    """

    write: bytes
    appends: list[Append]
    requests: tuple[Request, ...]
    wants_data: bool
    deadline_ms: int | None
    close: bool
    held_bytes: int


class Registration(NamedTuple):
    """The answer to Register.

    Attributes:
        connection_id: by the time when the CONNECT came in.
        client_id: the one that was asked for, or a new one.
        partition: of the commands topic.
        lease_id: of the lease under which the connection is held.
        knows_settings: the engine's settings are known, so that a clean start may be answered for it.
        serves_at_once: a clean start may be served before the engine has answered: a connection has a higher id only if its
            CONNECT came later.
        is_late: the CONNECT came in a while before it was read; its device may have connected elsewhere since.
        tables: those of routing in this process.
        gateway: name of this process, for people.
        read_to: up to where the router of this process had read the partition of the client's messages; None = it does not.
        left_sessions: those that clients have left at this gateway.
    """

    connection_id: int
    client_id: ClientId
    partition: int
    lease_id: str
    knows_settings: bool = False
    serves_at_once: bool = False
    is_late: bool = False
    tables: KnownTables = NO_TABLES
    gateway: str = ""
    read_to: Position | None = None
    left_sessions: LeftSessions = NO_LEFT_SESSIONS
