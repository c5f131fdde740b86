"""sinks.routing.matcher: which records a publication becomes, and which copies they have."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from sinks.kafka.partitioning import partition_of
from sinks.routing import matcher
from sinks.routing.matcher import Matcher, PublicationSource, RoutedRecord
from sinks.routing.metrics import MatcherCounters
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.settings import RoutingSettings
from state.model import QoS, Routing, Subscription
from state.records.messages import message_event
from state.records.record import Header
from state.records.routing import (
    MAX_RECIPIENTS,
    RECIPIENT_PREFIX,
    SourceKind,
    decode_routing,
    has_one_message_for_each_mark,
    source_number,
)
from state.records.session_marks import SessionMark, encode_mark, mark_key
from state.records.subscriptions import SubscriptionList, decode_subscriptions, encode_subscriptions
from state.records.uplink import uplink_headers
from state.settings import RecordLimits

NOW_MS = 1_700_000_000_000
PARTITIONS = 4
UPLINK = PublicationSource(topic="inflight.uplink", partition=3, topic_id="u", is_uplink=True)
PUBLICATIONS = PublicationSource(topic="inflight.publications", partition=1, topic_id="p", is_uplink=False)
SUBSCRIPTIONS = PublicationSource(topic="inflight.subscriptions", partition=2, topic_id="s", is_uplink=False)


@dataclass(kw_only=True)
class Record:
    offset: int = 7
    key: bytes | None = None
    value: bytes | None = b"payload"
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    timestamp: int = NOW_MS


class Routed:
    """A matcher with its tables."""

    def __init__(self, **settings: object) -> None:
        self.now_ms = NOW_MS
        self.tables = RoutingTables()
        self.counters = MatcherCounters()
        self.matcher = Matcher(
            self.tables,
            RoutingSettings(**settings),  # type: ignore[arg-type]
            self.counters,
            messages_partitions=PARTITIONS,
            retained_partitions=1,
            now_ms=lambda: self.now_ms,
        )

    def subscribe(
        self,
        client_id: str,
        *subscriptions: Subscription | str,
        connection: int = 1,
        version: int = 1,
        is_online: bool = True,
        wanted: tuple[str, ...] = (),
    ) -> None:
        asked = tuple(each if isinstance(each, Subscription) else subscription(each) for each in subscriptions)
        listed = SubscriptionList(
            connection_id=connection, version=version, subscriptions=asked, is_online=is_online, wanted=wanted
        )
        assert self.tables.read_list(client_id.encode(), encode_subscriptions(listed), [], self.now_ms) is None

    def retain(
        self,
        topic: str,
        payload: bytes = b"kept",
        *,
        publisher: str = "dev",
        expiry_s: int | None = None,
        inflight_id: str = "i",
        batch_ms: int | None = None,
    ) -> None:
        headers: list[tuple[str, bytes | None]] = [
            *uplink_headers(
                client_id=publisher,
                inflight_id=inflight_id,
                topic=topic,
                qos=QoS.AT_LEAST_ONCE,
                retain=True,
                expiry_interval_s=expiry_s,
            )
        ]
        if batch_ms is not None:
            headers.append(("micro-batch", b"%d" % batch_ms))
        self.tables.read_retained(topic.encode(), payload, headers, self.now_ms)

    def publish(self, topic: str, *, publisher: str = "dev", qos: QoS = QoS.AT_LEAST_ONCE, **more: object) -> list[RoutedRecord]:
        """Routes a device's publication. more: arguments of `uplink_headers`, and `offset`."""
        offset = more.pop("offset", 7)
        headers = uplink_headers(client_id=publisher, inflight_id=f"{publisher}:1:{offset}", topic=topic, qos=qos, **more)  # type: ignore[arg-type]
        record = Record(offset=offset, key=publisher.encode(), headers=[*headers])  # type: ignore[arg-type]
        return self.matcher.route(UPLINK, record)

    def send(self, topic: str, offset: int = 7, **more: bytes) -> list[RoutedRecord]:
        """Routes a backend's publication. more: headers, with _ instead of -."""
        headers: list[tuple[str, bytes | None]] = [("mqtt-topic", topic.encode())]
        headers += [(name.replace("_", "-"), value) for name, value in more.items()]
        return self.matcher.route(PUBLICATIONS, Record(offset=offset, headers=headers))

    def read(self, record: RoutedRecord) -> None:
        """Reads a record of `inflight.retained`."""
        self.tables.read_retained(record.key, record.value, record.headers, self.now_ms)

    def answer(self, client_id: str, *wanted: Subscription) -> list[RoutedRecord]:
        filters = tuple(each.topic_filter for each in wanted)
        asked = SubscriptionList(connection_id=5, version=2, subscriptions=wanted, wanted=filters)
        return list(self.matcher.answer(SUBSCRIPTIONS, 40, client_id, asked, listed_ms=self.now_ms))


def subscription(topic_filter: str, qos: QoS = QoS.EXACTLY_ONCE, **more: object) -> Subscription:
    return Subscription(topic_filter=topic_filter, qos=qos, **more)  # type: ignore[arg-type]


def copies(records: Iterable[RoutedRecord]) -> list[tuple[str, Routing]]:
    """Returns the recipients of records, in order, and checks the partition of each."""
    found = []
    for record in records:
        for name, value in record.headers:
            if name.startswith(RECIPIENT_PREFIX):
                client_id = name.removeprefix(RECIPIENT_PREFIX)
                assert record.key is None
                assert record.partition == partition_of(client_id.encode(), PARTITIONS)
                routing = decode_routing(value or b"")
                assert routing is not None
                found.append((client_id, routing))
    return found


def copy_of(records: list[RoutedRecord]) -> Routing:
    ((_, routing),) = copies(records)
    return routing


def header(record: RoutedRecord, name: str) -> bytes | None:
    return dict(record.headers).get(name)


# --- who gets a copy ------------------------------------------------------------------------------------------------------------


def test_a_subscriber_gets_a_copy_that_its_session_can_read() -> None:
    routed = Routed()
    routed.subscribe("sub", "a/+", connection=9)
    (record,) = routed.publish("a/b")
    routing = copy_of([record])
    assert routing == Routing(
        source=source_number(SourceKind.UPLINK, 3, "u"), mark=7, connection_id=9, version=1, qos=QoS.EXACTLY_ONCE
    )
    event = message_event(
        [Header(name, value) for name, value in record.headers if not name.startswith(RECIPIENT_PREFIX)],
        record.value,
        accepted_ms=NOW_MS,
        default_message_id="?",
        limits=RecordLimits(),
        recipient=header(record, "recipient-sub"),
    )
    assert (event.message.topic, event.message.qos, event.message.message_id) == ("a/b", QoS.AT_LEAST_ONCE, "dev:1:7")
    assert event.message.routing == routing


def test_a_publication_without_subscriber_makes_no_record() -> None:
    routed = Routed()
    routed.subscribe("sub", "a/b")
    assert routed.publish("a/c") == []
    assert (routed.counters.publications, routed.counters.publications_unmatched) == (1, 1)


def test_without_any_subscription_publications_of_devices_are_only_counted() -> None:
    routed = Routed()
    assert routed.matcher.passes_over(UPLINK, 3)
    assert (routed.counters.publications, routed.counters.publications_unmatched) == (3, 3)
    assert not routed.matcher.passes_over(PUBLICATIONS, 3), "they may be retained"
    routed.subscribe("c1", subscription("$share/g/a"))
    assert not routed.matcher.passes_over(UPLINK, 3)
    assert routed.counters.publications == 3


def test_a_client_gets_one_copy_with_the_highest_qos_and_all_ids() -> None:
    routed = Routed()
    routed.subscribe("sub", subscription("a", QoS.AT_MOST_ONCE, identifier=2), subscription("a/#", identifier=3))
    routing = copy_of(routed.publish("a"))
    assert (routing.qos, sorted(routing.subscription_ids)) == (QoS.EXACTLY_ONCE, [2, 3])


def test_no_local_leaves_out_the_publisher_and_nobody_else() -> None:
    routed = Routed()
    for client_id in ("dev", "other"):
        routed.subscribe(client_id, subscription("a", no_local=True))
    assert [client for client, _ in copies(routed.publish("a"))] == ["other"]


def test_no_local_leaves_the_publishers_other_subscriptions() -> None:
    routed = Routed()
    routed.subscribe("dev", subscription("a", no_local=True, identifier=1), subscription("#", QoS.AT_MOST_ONCE, identifier=2))
    routing = copy_of(routed.publish("a"))
    assert (routing.qos, routing.subscription_ids) == (QoS.AT_MOST_ONCE, (2,))


@pytest.mark.parametrize(("published", "asked"), [(True, True), (True, False), (False, True)])
def test_the_retain_flag_needs_publisher_and_subscriber(published: bool, asked: bool) -> None:
    routed = Routed()
    routed.subscribe("sub", subscription("a", retain_as_published=asked))
    assert copy_of(routed.publish("a", retain=published)).retain is (published and asked)


def test_wildcards_do_not_match_topics_with_a_dollar() -> None:
    routed = Routed()
    routed.subscribe("sub", "#")
    routed.subscribe("named", "$SYS/#")
    assert [client for client, _ in copies(routed.publish("$SYS/x"))] == ["named"]


# --- records --------------------------------------------------------------------------------------------------------------------


def test_clients_of_a_partition_share_a_record() -> None:
    routed = Routed()
    clients = [f"client{number}" for number in range(40)]
    for client_id in clients:
        routed.subscribe(client_id, "a")
    records = routed.publish("a")
    assert len(records) == PARTITIONS
    assert sorted(client for client, _ in copies(records)) == sorted(clients)


def test_a_record_has_only_as_many_recipients_as_it_may() -> None:
    routed = Routed()
    for number in range(5 * MAX_RECIPIENTS):
        routed.subscribe(f"client{number}", "a")
    records = routed.publish("a")
    assert max(len(copies([record])) for record in records) == MAX_RECIPIENTS
    assert len(dict(copies(records))) == 5 * MAX_RECIPIENTS


def test_recipients_with_long_ids_are_split_by_their_bytes() -> None:
    routed = Routed()
    for number in range(12):
        routed.subscribe(f"{number:060000}", "a")
    records = routed.publish("a")
    assert len(dict(copies(records))) == 12
    assert max(sum(len(name) for name, _ in record.headers) for record in records) < 300_000


def test_the_time_to_live_shrinks_on_the_way() -> None:
    routed = Routed()
    routed.subscribe("sub", "a")
    routed.now_ms += 2_000
    (record,) = routed.publish("a", expiry_interval_s=30)
    assert header(record, "expiration") == b"28000"


def test_what_the_device_said_is_passed_on_without_its_name() -> None:
    routed = Routed()
    routed.subscribe("sub", "a")
    (record,) = routed.publish("a", username="paul")
    assert header(record, "client-id") is None
    assert header(record, "username") is None


def test_a_publication_of_the_engine_is_marked_with_its_time() -> None:
    routed = Routed()
    routed.subscribe("sub", "a")
    record = Record(
        headers=[*uplink_headers(client_id="d", inflight_id="i", topic="a", qos=QoS.EXACTLY_ONCE), ("micro-batch", b"55")]
    )
    routing = copy_of(routed.matcher.route(UPLINK, record))
    assert (routing.source, routing.mark) == (source_number(SourceKind.UPLINK_BATCH, 3, "u"), 55)
    assert not has_one_message_for_each_mark(routing.source)


def test_only_a_backends_own_message_id_counts_as_named() -> None:
    routed = Routed()
    routed.subscribe("sub", "a")
    assert copy_of(routed.send("a", message_id=b"mine")).is_named
    (record,) = routed.send("a")
    assert header(record, "message-id") == b"inflight.publications-1-7"
    assert not copy_of([record]).is_named
    assert not copy_of(routed.publish("a")).is_named


@pytest.mark.parametrize(
    "headers", [[], [("mqtt-topic", b"\xff")], [("mqtt-topic", b"a"), ("mqtt-qos", b"3")], [("mqtt-topic", b"")]]
)
def test_a_publication_that_cannot_be_read_is_counted(headers: list[tuple[str, bytes | None]]) -> None:
    routed = Routed()
    routed.subscribe("sub", "a")
    assert routed.matcher.route(PUBLICATIONS, Record(headers=headers)) == []
    assert routed.counters.publications_refused.total() == 1


# --- shared subscriptions -------------------------------------------------------------------------------------------------------


def members(routed: Routed, *names: str) -> None:
    for name in names:
        routed.subscribe(name, "$share/g/a")


def test_one_member_of_each_group_gets_a_copy() -> None:
    routed = Routed()
    for client_id in ("m1", "m2"):
        routed.subscribe(client_id, "$share/g/a", "$share/h/+")
    found = copies(routed.publish("a"))
    assert sorted(routing.share for _, routing in found) == ["$share/g/a", "$share/h/+"]


def test_a_member_gets_another_copy_for_its_own_subscription() -> None:
    routed = Routed()
    routed.subscribe("m", "$share/g/a", "a")
    (_, plain), (_, shared) = copies(records := routed.publish("a"))
    assert len(records) == 2, "a record names a client once"
    assert (plain.share, shared.share) == ("", "$share/g/a")
    assert plain.source != shared.source, "the session would take the second one for a copy"
    assert has_one_message_for_each_mark(shared.source)


def test_an_online_member_goes_first() -> None:
    routed = Routed()
    routed.subscribe("off1", "$share/g/a", is_online=False)
    routed.subscribe("on", "$share/g/a")
    routed.subscribe("off2", "$share/g/a", is_online=False)
    assert {copies(routed.publish("a", publisher=f"p{number}"))[0][0] for number in range(20)} == {"on"}


def test_a_member_for_which_a_message_was_too_large_gets_it_only_alone() -> None:
    routed = Routed()
    members(routed, "m1", "m2", "m3")
    back = {"mqtt_share": b"$share/g/a", "micro_batch": b"9"}
    for number in range(9):
        ((member, routing),) = copies(routed.send("a", mqtt_share_tried=b'["m1", "m3"]', message_id=b"%d" % number, **back))
        assert (member, routing.tried) == ("m2", ("m1", "m3"))
    ((member, routing),) = copies(routed.send("a", mqtt_share_tried=b'["m1", "m2", "m3", "gone"]', message_id=b"i", **back))
    assert member in routing.tried, "its session ends the message"


def test_a_publisher_keeps_its_member_when_another_one_goes() -> None:
    routed = Routed()
    members(routed, *(f"m{number}" for number in range(10)))
    before = {f"p{number}": copies(routed.publish("a", publisher=f"p{number}"))[0][0] for number in range(200)}
    assert len(set(before.values())) == 10
    gone = before["p0"]
    routed.tables.subscriptions.end(gone, 1)
    for publisher, member in before.items():
        after = copies(routed.publish("a", publisher=publisher))[0][0]
        assert after == member or member == gone


def test_round_robin_goes_to_one_member_after_the_other() -> None:
    routed = Routed(shared_strategy="round_robin")
    members(routed, "m1", "m2", "m3")
    assert [copies(routed.publish("a", offset=offset))[0][0] for offset in range(6)] == ["m1", "m2", "m3"] * 2


@pytest.mark.parametrize("strategy", ["sticky", "round_robin"])
def test_a_second_attempt_writes_the_same_records(strategy: str) -> None:
    routed = Routed(shared_strategy=strategy)
    members(routed, "m1", "m2", "m3")
    routed.subscribe("plain", "a")
    assert [routed.publish("a", offset=offset) for offset in range(9)] == [
        routed.publish("a", offset=offset) for offset in range(9)
    ]


@pytest.mark.parametrize("strategy", ["sticky", "round_robin"])
def test_copies_of_a_micro_batch_go_to_the_same_member(strategy: str) -> None:
    """A micro-batch that is executed again writes its publications a second time, at other offsets."""
    routed = Routed(shared_strategy=strategy)
    members(routed, "m1", "m2", "m3")
    returned = {"mqtt_share": b"$share/g/a", "micro_batch": b"9", "message_id": b"i"}
    assert len({copies(routed.send("a", offset=offset, **returned))[0][0] for offset in range(6)}) == 1


def test_what_a_session_returns_goes_to_its_group_only() -> None:
    routed = Routed()
    members(routed, "m")
    routed.subscribe("plain", "a")
    routed.subscribe("other", "$share/h/a")
    ((client_id, routing),) = copies(routed.send("a", mqtt_share=b"$share/g/a", micro_batch=b"9", message_id=b"i"))
    assert (client_id, routing.share, routing.mark) == ("m", "$share/g/a", 9)
    assert not has_one_message_for_each_mark(routing.source)


# --- limits ---------------------------------------------------------------------------------------------------------------------


def test_beyond_the_limit_only_qos_0_is_dropped() -> None:
    routed = Routed(max_fan_out=3)
    for number in range(5):
        routed.subscribe(f"client{number}", "a")
    assert len(copies(routed.publish("a", qos=QoS.AT_MOST_ONCE))) == 3
    assert routed.counters.recipients_shed == 2
    assert len(copies(routed.publish("a", qos=QoS.AT_LEAST_ONCE))) == 5
    assert len(copies(routed.publish("a", qos=QoS.AT_MOST_ONCE, publisher="other"))) == 3
    routed.now_ms += 1_000
    assert len(copies(routed.publish("a", qos=QoS.AT_MOST_ONCE))) == 3


# --- retained messages ----------------------------------------------------------------------------------------------------------


def test_a_backends_retained_message_is_kept_and_routed() -> None:
    routed = Routed()
    routed.subscribe("sub", "a")
    kept, _ = routed.send("a", mqtt_retain=b"true", content_type=b"x")
    assert (kept.topic, kept.key, kept.value) == ("inflight.retained", b"a", b"payload")
    routed.tables.read_retained(kept.key, kept.value, kept.headers, NOW_MS)
    (record,) = routed.answer("new", subscription("a"))
    assert (record.value, header(record, "content-type")) == (b"payload", b"x")


def test_an_empty_retained_payload_removes_the_message() -> None:
    routed = Routed()
    (record,) = routed.matcher.route(PUBLICATIONS, Record(value=b"", headers=[("mqtt-topic", b"a"), ("mqtt-retain", b"1")]))
    assert (record.key, record.value) == (b"a", None)


def test_the_gateway_and_not_the_matcher_keeps_a_devices_message() -> None:
    assert Routed().publish("a", retain=True) == []


def test_retained_messages_beyond_the_limit_are_refused_and_routed() -> None:
    routed = Routed(max_retained_messages=1)
    routed.subscribe("sub", "#")
    routed.retain("a")
    assert [record.topic for record in routed.send("b", mqtt_retain=b"true")] == ["inflight.messages"]
    assert routed.counters.publications_refused["retained_full"] == 1
    assert len(routed.send("a", mqtt_retain=b"true")) == 2, "it replaces one"


def test_a_retained_publication_for_later_waits_and_then_just_comes() -> None:
    routed = Routed()
    routed.subscribe("sub", "a")
    routed.retain("a")
    (record,) = routed.send("a", mqtt_retain=b"true", deliver_at=b"+14s")
    assert record.topic == "inflight.retained"
    routed.read(record)
    assert [kept.value for kept in routed.answer("new", subscription("a"))] == [b"kept"], "the present one stands"
    routed.now_ms += 14_000
    ((key, delayed),) = routed.tables.delayed.due(routed.now_ms, {PUBLICATIONS.partition})
    published, ended = routed.matcher.due(key, delayed)
    assert (published.topic, published.partition, published.value) == ("inflight.publications", 1, b"payload")
    again = Record(offset=8, key=published.key, value=published.value, headers=published.headers, timestamp=routed.now_ms)
    kept, copy = routed.matcher.route(PUBLICATIONS, again)
    routed.read(kept)
    assert copy_of([copy]).is_named
    assert [one.value for one in routed.answer("new", subscription("a"))] == [b"payload"]
    routed.read(ended)
    assert len(routed.tables.delayed) == 0


def test_a_retained_message_is_removed_at_the_time_and_not_before() -> None:
    routed = Routed()
    routed.retain("a")
    headers: list[tuple[str, bytes | None]] = [("mqtt-topic", b"a"), ("mqtt-retain", b"1"), ("deliver-at", b"+1s")]
    (record,) = routed.matcher.route(PUBLICATIONS, Record(value=b"", headers=headers))
    assert record.value == b"", "null would end the wait"
    routed.read(record)
    assert len(routed.answer("new", subscription("a"))) == 1
    assert len(routed.tables.delayed) == 1


def test_a_retained_publication_for_a_past_time_is_kept_at_once() -> None:
    routed = Routed()
    (record,) = routed.send("a", mqtt_retain=b"true", deliver_at=b"+0s")
    assert record.key == b"a"


def test_retained_publications_for_later_beyond_the_limit_are_not_kept() -> None:
    routed = Routed(max_retained_messages=1)
    routed.subscribe("sub", "#")
    later = {"mqtt_retain": b"true", "deliver_at": b"+1s"}
    (first,) = routed.send("a", 7, **later)
    routed.read(first)
    assert [record.topic for record in routed.send("a", 8, **later)] == ["inflight.messages"]
    assert routed.counters.publications_refused["retained_full"] == 1
    assert routed.send("a", 7, **later) == [first], "it replaces itself"


def test_a_delayed_record_that_cannot_be_read_waits_no_longer() -> None:
    routed = Routed()
    (record,) = routed.send("a", mqtt_retain=b"true", deliver_at=b"+1s")
    routed.read(record)
    routed.tables.read_retained(record.key, b"p", [], NOW_MS)
    assert (len(routed.tables.delayed), routed.tables.unreadable) == (0, 1)


def test_a_subscribe_gets_retained_messages_with_flag_and_identifier() -> None:
    routed = Routed()
    routed.retain("a/b")
    routed.retain("a/c")
    records = routed.answer("new", subscription("a/+", QoS.AT_MOST_ONCE, identifier=4))
    ids = {header(record, "message-id") for record in records}
    assert len(ids) == 2, "each has an id of its own"
    for client_id, routing in copies(records):
        assert client_id == "new"
        assert routing == Routing(
            source=source_number(SourceKind.RETAINED, 2, "s"),
            mark=40,
            connection_id=5,
            version=2,
            qos=QoS.AT_MOST_ONCE,
            retain=True,
            subscription_ids=(4,),
        )


def test_filters_of_one_subscribe_bring_a_retained_message_once() -> None:
    routed = Routed()
    routed.retain("a")
    records = routed.answer("new", subscription("a", QoS.AT_MOST_ONCE, identifier=4), subscription("#", identifier=4))
    assert (copy_of(records).qos, copy_of(records).subscription_ids) == (QoS.EXACTLY_ONCE, (4,))


def test_a_shared_subscription_gets_no_retained_messages() -> None:
    routed = Routed()
    routed.retain("a")
    assert routed.answer("new", subscription("$share/g/a")) == []


def test_an_expired_retained_message_is_not_sent() -> None:
    routed = Routed()
    routed.retain("a", expiry_s=10)
    routed.now_ms += 4_000
    (record,) = routed.answer("new", subscription("a"))
    assert header(record, "expiration") == b"6000"
    routed.now_ms += 6_000
    assert routed.answer("new", subscription("a")) == []


def test_no_local_holds_for_retained_messages() -> None:
    routed = Routed()
    routed.retain("a", publisher="dev")
    assert routed.answer("dev", subscription("a", no_local=True)) == []
    assert len(routed.answer("other", subscription("a", no_local=True))) == 1


# --- a retained publication about the time of a SUBSCRIBE comes once ------------------------------------------------------------


def around(routed: Routed, *, subscribed_after_ms: int, matched_after_ms: int = 50, **options: object) -> tuple[int, int]:
    """Publishes a retained message, and subscribes so much later. Returns how often it comes live, and as retained message."""
    routed.now_ms += subscribed_after_ms
    asked = subscription("a", **options)
    listed_ms = routed.now_ms
    routed.subscribe("sub", asked, connection=5, version=2, wanted=("a",))
    routed.now_ms = NOW_MS
    routed.retain("a", inflight_id="dev:1:7")
    live = routed.publish("a", retain=True)
    routed.now_ms = NOW_MS + matched_after_ms
    return len(copies(live)), len(list(routed.matcher.answer(SUBSCRIPTIONS, 40, "sub", _list(asked), listed_ms=listed_ms)))


def _list(asked: Subscription) -> SubscriptionList:
    return SubscriptionList(connection_id=5, version=2, subscriptions=(asked,), wanted=("a",))


def test_what_is_retained_before_the_subscribe_does_not_come_live() -> None:
    """The matcher of `uplink` is behind."""
    assert around(Routed(), subscribed_after_ms=1) == (0, 1)


def test_what_is_retained_behind_the_subscribe_comes_live() -> None:
    """The matcher of `subscriptions` is behind."""
    assert around(Routed(), subscribed_after_ms=-1) == (1, 0)


def test_what_is_retained_in_the_same_millisecond_comes_both_ways() -> None:
    assert around(Routed(), subscribed_after_ms=0) == (1, 1)


@pytest.mark.parametrize("subscribed_after_ms", [-100, 100])
def test_several_brokers_differ_by_as_much_as_their_clocks(subscribed_after_ms: int) -> None:
    routed = Routed()
    routed.tables.clocks_differ_ms = 100
    assert around(routed, subscribed_after_ms=subscribed_after_ms) == (1, 1)
    further = Routed()
    further.tables.clocks_differ_ms = 99
    assert sum(around(further, subscribed_after_ms=subscribed_after_ms)) == 1


def test_a_subscription_that_asks_for_no_retained_message_gets_it_live() -> None:
    routed = Routed()
    routed.now_ms += 1
    routed.subscribe("sub", subscription("a"))
    routed.now_ms = NOW_MS
    routed.retain("a", inflight_id="dev:1:7")
    assert len(copies(routed.publish("a", retain=True))) == 1


def test_what_another_subscription_of_the_client_had_comes_live_by_that() -> None:
    routed = Routed()
    shared, early, late = (
        subscription("$share/g/a", identifier=1),
        subscription("+", identifier=2),
        subscription("a", identifier=3),
    )
    routed.subscribe("sub", shared, early, subscription("b", identifier=4))
    routed.now_ms += 1
    routed.subscribe("sub", shared, early, subscription("b", identifier=4), late, version=2, wanted=("a",))
    routed.now_ms = NOW_MS
    routed.retain("a", inflight_id="dev:1:7")
    assert [copy.subscription_ids for _, copy in copies(routed.publish("a", retain=True))] == [(2,), (1,)]


def test_a_subscription_that_is_renewed_has_begun_before() -> None:
    """Live it is no copy of the retained message that every SUBSCRIBE brings."""
    routed = Routed()
    routed.subscribe("sub", subscription("a"))
    routed.now_ms += 1
    routed.subscribe("sub", subscription("a"), version=2, wanted=("a",))
    routed.now_ms = NOW_MS
    routed.retain("a", inflight_id="dev:1:7")
    assert len(copies(routed.publish("a", retain=True))) == 1


def test_what_has_been_replaced_before_the_subscribe_does_not_come_live() -> None:
    """A subscriber would see the state go back."""
    routed = Routed()
    routed.retain("a", inflight_id="dev:1:7")
    routed.now_ms += 1
    routed.retain("a", inflight_id="dev:1:8")
    routed.now_ms += 1
    routed.subscribe("sub", subscription("a"), wanted=("a",))
    assert copies(routed.publish("a", retain=True)) == []


def test_nor_does_what_has_deleted_the_retained_message() -> None:
    routed = Routed()
    routed.retain("a", b"", inflight_id="dev:1:7")
    routed.now_ms += 1
    routed.subscribe("sub", subscription("a"), wanted=("a",))
    assert copies(routed.publish("a", retain=True)) == []


def test_what_is_retained_behind_all_subscriptions_costs_no_look_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller has thousands of filters, and most of what it gets is retained."""
    routed = Routed()
    routed.subscribe("controller", subscription("a"), subscription("#"), wanted=("a", "#"))
    routed.now_ms += 1
    routed.retain("a", inflight_id="dev:1:7")
    monkeypatch.setattr(matcher, "topic_matches", None)
    assert len(copies(routed.publish("a", retain=True))) == 1


def test_what_is_not_kept_comes_live() -> None:
    routed = Routed()
    routed.now_ms += 1
    routed.subscribe("sub", subscription("a"), wanted=("a",))
    routed.now_ms = NOW_MS
    assert len(copies(routed.publish("a", retain=True))) == 1
    routed.retain("a", inflight_id="dev:1:7")
    assert len(copies(routed.publish("a"))) == 1, "without RETAIN it is no retained message"


@pytest.mark.parametrize("by", [{"publisher": ""}, {"batch_ms": 1}])
def test_what_backend_or_engine_has_retained_behind_the_subscribe_is_sent(by: dict[str, object]) -> None:
    """Backend and engine write `retained` beside the record that is routed, so what stands in it need not come live later."""
    routed = Routed()
    routed.now_ms += 1
    routed.retain("a", **by)  # type: ignore[arg-type]
    asked = subscription("a")
    assert len(list(routed.matcher.answer(SUBSCRIPTIONS, 40, "sub", _list(asked), listed_ms=NOW_MS))) == 1


def list_record(connection_id: int, version: int, *, is_online: bool = True) -> Record:
    listed = SubscriptionList(
        connection_id=connection_id, version=version, subscriptions=(subscription("a"),), is_online=is_online
    )
    return Record(key=b"c", value=encode_subscriptions(listed))


def test_a_lower_list_is_followed_by_the_highest_one() -> None:
    routed = Routed()
    highest = subscription("a/#", QoS.AT_LEAST_ONCE, no_local=True, retain_as_published=True, identifier=7)
    routed.subscribe("c", highest, connection=5)
    repeated = routed.matcher.repeated(2, list_record(4, 9))
    assert repeated is not None
    assert (repeated.topic, repeated.partition, repeated.key) == ("inflight.subscriptions", 2, b"c")
    assert decode_subscriptions(repeated.value or b"") == SubscriptionList(connection_id=5, version=1, subscriptions=(highest,))
    assert routed.counters.lists_repeated == 1


def test_a_mark_of_an_earlier_connection_is_followed_by_the_newest_one() -> None:
    """Compaction keeps the last record, so the newest mark has to be it."""
    routed = Routed()
    key = mark_key("c")
    assert routed.matcher.repeated(2, Record(key=key, value=None)) is None
    assert routed.matcher.repeated(2, Record(key=key, value=encode_mark(4))) is None
    routed.tables.sessions.mark(b"c", SessionMark(5))
    assert routed.matcher.repeated(2, Record(key=key, value=encode_mark(5))) is None
    assert routed.matcher.repeated(2, Record(key=key, value=b"?")) is None
    for value in (encode_mark(4), None):
        repeated = routed.matcher.repeated(2, Record(key=key, value=value))
        assert repeated is not None
        assert (repeated.partition, repeated.key, repeated.value, repeated.headers) == (2, key, encode_mark(5), [])
    # Without `kept`: this session may have ended meanwhile, and its end may stand before the mark.


@pytest.mark.parametrize("record", [list_record(5, 1), list_record(5, 2), Record(key=b"c"), Record(key=b"c", value=None)])
def test_what_is_no_lower_list_is_not_followed_by_one(record: Record) -> None:
    routed = Routed()
    assert routed.matcher.repeated(2, list_record(1, 1)) is None, "the table has no list of the client"
    routed.subscribe("c", "a", connection=5)
    assert routed.matcher.repeated(2, record) is None
    assert routed.matcher.repeated(2, Record(key=b"\xff")) is None
