"""trials.attacks.packets: the gateway's own decoders read what is whole, and nothing else is wrong with it."""

from sinks.mqtt.codec import v5, v311
from sinks.mqtt.codec.packets import Connect, Publish, Subscribe
from tests.unit.sinks.mqtt.mqtt_bytes import body_start
from trials.attacks import packets


def test_connects() -> None:
    clean, kept = packets.connect_clean("a"), packets.connect_kept("b")
    for data, client_id, is_clean in ((clean, "a", True), (kept, "b", False)):
        decoded = v311.decode(data, body_start(data))
        assert isinstance(decoded, Connect)
        assert (decoded.client_id, decoded.clean_start, decoded.keep_alive_s) == (client_id, is_clean, 0)
    forever = packets.connect_v5("c", session_expiry_s=packets.FOREVER)
    decoded = v5.decode(forever, body_start(forever))
    assert isinstance(decoded, Connect)
    assert (decoded.client_id, decoded.session_expiry_interval_s) == ("c", packets.FOREVER)


def test_a_subscribe_has_all_of_its_filters() -> None:
    data = packets.subscribe(7, ["a/1", "a/2"])
    decoded = v311.decode(data, body_start(data))
    assert isinstance(decoded, Subscribe)
    assert [subscription.topic_filter for subscription in decoded.subscriptions] == ["a/1", "a/2"]


def test_headers_may_be_as_long_as_mqtt_can_say() -> None:
    data = packets.publish_v5(packets.user_property(b"h", b"v" * 1_000) * 3, packet_id=9)
    decoded = v5.decode(data, body_start(data))
    assert isinstance(decoded, Publish)
    assert (decoded.packet_id, [len(value) for _, value in decoded.properties.user_properties]) == (9, [1_000] * 3)
    assert len(packets.publish_v5(packets.user_property(value=b"v" * packets.MAX_TEXT_BYTES))) > packets.MAX_TEXT_BYTES


def test_a_bomb_has_so_many_properties() -> None:
    data = packets.bomb(300)
    decoded = v5.decode(data, body_start(data))
    assert isinstance(decoded, Publish)
    assert decoded.properties.user_properties == (("", ""),) * 300


def test_of_an_unfinished_packet_the_end_is_missing() -> None:
    whole = packets.unfinished_publish(100, 1) + b"\x00"
    decoded = v311.decode(whole, body_start(whole))
    assert isinstance(decoded, Publish)
    assert len(decoded.payload) == 100
