"""Reads PUBLISHes with topic aliases as a client does: each has its topic and all else, within the client's limits."""

from typing import Any

import mqtt5
from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.codec import v5
from sinks.mqtt.codec.packets import Publish
from sinks.mqtt.codec.topic_aliases import TopicAliases
from state.model import NO_PROPERTIES, PublishProperties, QoS

properties = st.just(NO_PROPERTIES) | st.builds(PublishProperties, content_type=st.just("c" * 120), payload_format=st.just(1))
publishes = st.fixed_dictionaries(
    {
        "content": st.builds(
            Publish,
            topic=st.sampled_from(["a", "ü/2", "t/3", "a/topic/with/many/levels", "x" * 300]),
            payload=st.binary(max_size=3) | st.sampled_from([b"p" * 110, b"p" * 127]),
            retain=st.booleans(),
            properties=properties,
        ),
        "qos": st.sampled_from(QoS),
        "packet_id": st.integers(1, 65_535),
        "dup": st.booleans(),
        "expiry_interval_s": st.none() | st.integers(1, 9),
        "subscription_ids": st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple),
    }
)


def seen(data: bytes) -> Any:
    packet, length = mqtt5.read(memoryview(data))
    assert length == len(data)
    return packet


def all_but_the_topic(packet: Any) -> tuple[Any, ...]:
    return (
        packet.payload,
        packet.qos,
        packet.retain,
        packet.packet_id,
        packet.duplicate,
        packet.message_expiry_interval,
        packet.subscription_ids,
        packet.content_type,
        packet.payload_format_indicator,
    )


@given(st.integers(1, 5), st.integers(0, 60), st.lists(publishes, max_size=12))
def test_a_client_reads_each_topic_within_its_limits(maximum: int, spare_bytes: int, given_publishes: list[Any]) -> None:
    """spare_bytes: by which the client's Maximum Packet Size exceeds the largest packet without an alias; 60 = it has none."""
    for publish in given_publishes:
        if publish["qos"] == QoS.AT_MOST_ONCE:
            publish |= {"packet_id": 0, "dup": False}
    plain = [v5.encode_publish(**publish) for publish in given_publishes]
    limit = None if spare_bytes == 60 else max(map(len, plain), default=0) + spare_bytes % 8
    aliases = TopicAliases(maximum, v5.encode_publish, limit)
    known: dict[int, str] = {}
    for publish, data_without_alias in zip(given_publishes, plain, strict=True):
        data = aliases.encode_publish(**publish)
        assert limit is None or len(data) <= limit
        packet = seen(data)
        if packet.topic_alias is not None:
            assert 1 <= packet.topic_alias <= maximum
            if packet.topic:
                known[packet.topic_alias] = packet.topic
        assert (packet.topic or known[packet.topic_alias]) == publish["content"].topic
        assert all_but_the_topic(packet) == all_but_the_topic(seen(data_without_alias))
