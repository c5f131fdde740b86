"""trials/faults/log_reader.py derives connections from events and commands."""

from state.events import ClientConnected, ConnectionLost
from state.model import Will
from trials.faults.account.facts import LoggedEnd
from trials.faults.log_reader import connections_in


def connected(connection_id: int) -> ClientConnected:
    will = Will(topic="up/will", payload=b"%d" % connection_id)
    return ClientConnected(connection_id=connection_id, commands_partition=0, will=will)


def test_a_smaller_id_is_a_connection_and_a_repeated_record_is_none() -> None:
    lost = ConnectionLost(connection_id=100, reason="cut off")
    events = [(1.0, connected(100)), (1.0, connected(100)), (2.0, lost), (3.0, connected(90)), (3.5, connected(100))]
    first, second = connections_in("c", events, closed=set())
    assert (first.will, first.end, first.end_s, first.next_s) == (b"100", LoggedEnd.OTHER, 2.0, 3.0)
    assert (second.will, second.end, second.next_s) == (b"90", LoggedEnd.NOTHING, None)
