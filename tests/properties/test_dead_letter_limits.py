"""Whatever policies, exchanges, keys and devices there are: the copies of one message come to an end, each with its outcome."""

import json
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from state.dead_letters.exchanges import Binding, Exchange, ExchangeType, parse_destination
from state.dead_letters.policy import Policy
from tests.scenarios.engine_model import EngineModel

CLIENTS = ("a", "b", "c", "d")
MOST = 40
DAY_S = 86_400
REFUSED = 0x87

destinations = st.sampled_from([*(f"client:{name}" for name in CLIENTS), "client:x/{client}", "topic:parking"])
exchanges = st.builds(
    lambda kind, to: Exchange(
        name="x", type=kind, bindings=tuple(Binding(key="#", destination=parse_destination(name)) for name in to)
    ),
    st.sampled_from([ExchangeType.FANOUT, ExchangeType.TOPIC]),
    st.lists(destinations, max_size=4),
)
policies = st.builds(
    Policy,
    clients=st.sampled_from([*CLIENTS, "*", "x/*"]),
    dead_letter_exchange=st.sampled_from(["", "x", "dead-letters"]),
    dead_letter_routing_key=st.none() | st.sampled_from([*CLIENTS, "x/{client}"]),
    message_ttl_ms=st.none() | st.sampled_from([0, 1_000]),
)
answers = st.sampled_from([0, REFUSED])


def named(lists: Iterable[list[str]]) -> list[tuple[str, bytes]]:
    return [(name, json.dumps(keys).encode()) for name, keys in zip(("CC", "BCC"), lists, strict=False) if keys]


@given(
    st.lists(policies, max_size=3),
    exchanges,
    st.dictionaries(st.sampled_from(CLIENTS), answers),
    st.lists(st.lists(st.sampled_from([*CLIENTS, "", "\x00", "y" * 2_000]), max_size=6), max_size=2).map(named),
    st.booleans(),
)
def test_one_message_makes_so_many_dead_letters_and_each_copy_ends(
    given_policies: list[Policy], exchange: Exchange, devices: dict[str, int], headers: list[tuple[str, bytes]], expires: bool
) -> None:
    engine = EngineModel(policies=given_policies, exchanges=(exchange,), max_dead_letters=MOST, delivery_limit=2)
    for client_id, answer in devices.items():
        engine.connect(client_id, answer=answer)
    engine.send("a", "m", *headers, *([("expiration", b"0")] if expires else []), topic="b")
    engine.after(DAY_S)
    for client_id in devices:
        engine.lose_connection(client_id)
    engine.after(DAY_S)

    copies = 1
    for receipt in engine.receipts:
        queues = [destination for destination in receipt["destinations"] if destination.startswith("client:")]
        assert receipt["final"] is not bool(queues)
        copies += len(queues) - 1
    merged = sum(row.get("outcome") == "duplicate" for row in engine.ledger)
    waiting = sum(len(engine.queued(name)) for name in {row["client_id"] for row in engine.ledger})
    assert copies == merged + waiting
    assert sum(len(receipt["destinations"]) for receipt in engine.receipts) <= MOST + len(engine.receipts)
    assert sum(not receipt["final"] for receipt in engine.receipts) <= MOST
