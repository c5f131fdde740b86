"""sinks.routing.routing_tables: how records of both compacted topics change what a process knows."""

from sinks.routing.routing_tables import RoutingTables
from state.model import QoS, Subscription
from state.records.subscriptions import SubscriptionList, encode_subscriptions
from state.records.uplink import uplink_headers


def a_list(connection_id: int, version: int, *filters: str) -> bytes:
    subscriptions = tuple(Subscription(topic_filter=each, qos=QoS.AT_LEAST_ONCE) for each in filters)
    return encode_subscriptions(SubscriptionList(connection_id=connection_id, version=version, subscriptions=subscriptions))


def test_a_lower_list_behind_a_higher_one_names_its_client() -> None:
    tables = RoutingTables()
    assert tables.read_list(b"dev", a_list(2, 1, "a"), []) is None
    assert tables.read_list(b"dev", a_list(1, 5), []) == "dev"
    assert tables.read_list(b"dev", None, [("ended", b"1")]) == "dev"
    entry = tables.subscriptions.get("dev")
    assert entry is not None
    assert (entry.connection_id, list(entry.subscriptions)) == (2, ["a"])


def test_the_end_of_the_newest_connection_removes_the_client() -> None:
    tables = RoutingTables()
    tables.read_list(b"dev", a_list(2, 1, "a"), [])
    assert tables.read_list(b"dev", None, [("ended", b"2")]) is None
    assert tables.subscriptions.get("dev") is None


def test_unreadable_records_are_counted_and_change_nothing() -> None:
    tables = RoutingTables()
    tables.read_list(b"dev", a_list(1, 1, "a"), [])
    assert tables.read_list(b"dev", b"\x01junk", []) is None
    assert tables.read_list(b"dev", None, []) is None
    assert tables.read_list(b"\xff", a_list(1, 1), []) is None
    assert tables.unreadable == 3
    assert tables.subscriptions.get("dev") is not None


def test_a_record_without_a_value_removes_a_retained_message() -> None:
    tables = RoutingTables()
    headers = uplink_headers(client_id="d", inflight_id="i", topic="a", qos=QoS.AT_LEAST_ONCE, retain=True)
    tables.read_retained(b"a", b"payload", [*headers], 5)
    assert len(tables.retained) == 1
    assert tables.retained.size_bytes > len(b"payload")
    tables.read_retained(b"a", None, [], 6)
    assert (len(tables.retained), tables.retained.size_bytes) == (0, 0)


def test_a_retained_message_that_cannot_be_read_is_none() -> None:
    tables = RoutingTables()
    headers = uplink_headers(client_id="d", inflight_id="i", topic="a", qos=QoS.AT_LEAST_ONCE)
    tables.read_retained(b"a", b"payload", [*headers], 5)
    tables.read_retained(b"a", b"payload", [], 6)
    assert (len(tables.retained), tables.unreadable) == (0, 1)
