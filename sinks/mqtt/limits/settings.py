"""The limits of a gateway on what devices may use: the keys of [limits]."""

import ipaddress
from dataclasses import dataclass
from enum import StrEnum

from state.setting import HOUR, KIB, MIB, SECOND, Setting


def check_network(text: str) -> None:
    """Raises ValueError if the text is neither an address nor a network."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError("write an address or a network, for example 10.0.0.0/8") from None


class Limit(StrEnum):
    """A limit that was reached: a label of the metric and of log lines. Each is named after the key that sets it."""

    CONNECTIONS = "max_connections"
    CONNECTIONS_PER_ADDRESS = "max_connections_per_address"
    AWAITING_CONNECT = "max_awaiting_connect"
    WAITING_CONNECTS = "max_waiting_connects"
    CONNECT_PROPERTIES_BYTES = "max_connect_properties_bytes"
    PROPERTIES_BYTES = "max_properties_bytes"
    SUBSCRIBE_FILTERS = "max_subscribe_filters"
    SUBSCRIPTIONS = "max_subscriptions"
    WILL_BYTES = "max_will_bytes"
    TOPIC_LEVELS = "max_topic_levels"
    PACKET_RATE = "max_packet_rate"
    BYTE_RATE = "max_byte_rate"
    TOTAL_UNCONFIRMED_APPENDS = "max_total_unconfirmed_appends"
    TOTAL_UNCONFIRMED_BYTES = "max_total_unconfirmed_bytes"
    TOTAL_BUFFERED_BYTES = "max_total_buffered_bytes"
    RETAINED_MESSAGES = "max_retained_messages"
    RETAINED_BYTES = "max_retained_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """Limits on what devices may use of a gateway, besides those of [gateway] and [session] (docs/operate/security.md)."""

    max_connections: int = Setting("sockets of all devices; one more is closed at once", (1, 1_000_000)).default(20_000)
    max_connections_per_address: int = Setting("sockets of one address, in IPv6 of one /64 network", (1, 1_000_000)).default(
        1_000
    )
    unlimited_addresses: tuple[str, ...] = Setting(
        "networks that max_connections_per_address does not hold for, such as load balancers that hide addresses",
        check=check_network,
    ).default(("127.0.0.0/8", "::1/128"))
    # Closing the oldest lets devices through that send CONNECT at once.
    max_awaiting_connect: int = Setting(
        "sockets before CONNECT, TLS handshake and PROXY header included; one more closes the oldest", (1, 1_000_000)
    ).default(2_000)
    max_connect_rate: int = Setting("CONNECTs handled a second; others wait their turn", (1, 1_000_000)).default(4_000)
    max_waiting_connects: int = Setting(
        "CONNECTs that wait their turn; addresses take turns; beyond, CONNECT is refused with 0x89", (0, 1_000_000)
    ).default(5_000)
    max_unanswered_connects: int = Setting("CONNECTs that the engine has not answered; others wait", (1, 1_000_000)).default(
        2_000
    )
    max_connect_bytes: int = Setting(
        "a CONNECT, and what is read of a device before it is accepted; beyond, it is closed", (KIB, 64 * MIB)
    ).default(32_768)
    max_connect_properties_bytes: int = Setting(
        "MQTT 5 properties of a CONNECT and its will together; beyond, it is refused with 0x97", (64, MIB)
    ).default(1_024)
    max_properties_bytes: int = Setting(
        "MQTT 5 properties of any other packet; beyond, PUBLISH and SUBSCRIBE are refused with 0x97, UNSUBSCRIBE with 0x83, QoS "
        "0 is dropped, and others close the connection with 0x97",
        (64, MIB),
    ).default(8_192)
    max_subscribe_filters: int = Setting(
        "topic filters of one SUBSCRIBE; those beyond are refused with 0x97, 0x80 in MQTT 3.1.1; UNSUBSCRIBE may name as many as "
        "session.max_subscriptions too, and those beyond get 0x83, or close the connection in MQTT 3.1.1",
        (1, 65_535),
    ).default(256)
    max_will_bytes: int = Setting(
        "topic, payload and properties of a will; beyond, CONNECT is refused with 0x97 (3 in MQTT 3.1.1)", (KIB, 64 * MIB)
    ).default(16_384)
    max_topic_levels: int = Setting(
        "levels of a topic or topic filter; beyond, PUBLISH and CONNECT with a will are refused with 0x90, SUBSCRIBE with 0x8F; "
        "in MQTT 3.1.1 a PUBLISH closes the connection, CONNECT gets 3 and SUBSCRIBE 0x80",
        (1, 65_535),
    ).default(32)
    max_packet_rate: int = Setting(
        "packets a second that are read of one device; 64 bytes of properties, or a further topic filter, count as one more; 0 = "
        "no limit",
        (0, 1_000_000),
    ).default(2_000)
    max_byte_rate: int = Setting("bytes a second that are read of one device; 0 = no limit", (0, 1 << 30), unit="bytes").default(
        4_194_304
    )
    max_delay_ms: int = Setting(
        "while devices that send little wait longer than this for the gateway or for Kafka, every device may send only a share "
        "of these rates, at least 1/64, and CONNECTs are handled down to 1/8 as fast; 0 = the full rates always hold",
        (0, 10 * SECOND),
    ).default(5)
    max_keep_alive_s: int = Setting(
        "a device that asks for a longer keep alive, or for none, gets this one; MQTT 5 is told so, MQTT 3.1.1 is closed all the "
        "same when it is silent for one and a half times that",
        (1, 65_535),
        key="max_keep_alive_ms",
    ).default(3_600)
    tcp_keepalive_ms: int = Setting(
        "TCP probes a silent device after this long, and closes after about twice as long; 0 = never", (0, 2 * HOUR)
    ).default(60_000)
    max_total_unconfirmed_appends: int = Setting(
        "records of all devices that Kafka has not confirmed; beyond, nobody is read from until it is half of that",
        (1, 10_000_000),
    ).default(20_000)
    max_total_unconfirmed_bytes: int = Setting("size of these records; beyond, likewise", (MIB, 64 << 30)).default(67_108_864)
    max_total_buffered_bytes: int = Setting(
        "bytes that the gateway holds for all devices together: incomplete packets, messages that wait for their device, and "
        "what was written and not read; beyond, those that hold most are closed until it is three quarters of that",
        (MIB, 64 << 30),
    ).default(268_435_456)
    max_blocked_qos0_bytes: int = Setting(
        "QoS 0 messages for a device that does not read, or that wait behind the fast path; beyond, dropped; 1/32 of it while "
        "all devices have more than half of max_total_buffered_bytes",
        (0, 1 << 30),
    ).default(8 * MIB)
