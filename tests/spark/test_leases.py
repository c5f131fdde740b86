"""The engine finds connections without a lease in a running query, and ends them."""

import pytest

from state.commands import AcceptConnection
from state.events import ConnectionLost
from streaming.engine.leases.connections import OpenConnection, connections_without_lease
from tests.support.waiting import wait_until


@pytest.mark.promise("gateway-dies")
def test_connections_without_a_live_lease_are_found_while_the_query_runs(pipeline) -> None:
    pipeline.start()
    clients = {"a": "dead", "b": "live", "c": "dead", "old": "", "gone": "dead"}
    for number, (client_id, lease_id) in enumerate(clients.items(), 1):
        pipeline.connect(client_id, connection_id=number << 40, lease_id=lease_id)
    pipeline.send_event("gone", ConnectionLost(connection_id=5 << 40))
    pipeline.send_message("waiting", b"for a client that never came")
    pipeline.commands(lambda found: sum(isinstance(command, AcceptConnection) for command in found) == len(clients))
    pipeline.await_batches(2)  # the one that said so, and the next: what was sent last may be in that

    def found(live: frozenset[str]) -> set[OpenConnection]:
        return set(connections_without_lease(pipeline.spark, str(pipeline.checkpoint), live))

    dead = {OpenConnection("a", 1 << 40, "dead"), OpenConnection("c", 3 << 40, "dead")}
    assert found(frozenset({"live"})) == dead
    assert found(frozenset({"live", "dead"})) == set()
    for connection in dead:
        pipeline.send_event(connection.client_id, ConnectionLost(connection_id=connection.connection_id))
    wait_until(lambda: found(frozenset()) == {OpenConnection("b", 2 << 40, "live")}, "their sessions know", check=pipeline.check)
