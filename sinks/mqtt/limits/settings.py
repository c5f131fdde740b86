"""What one gateway gives to devices at most."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """These are the defaults of [limits], too: streaming/config/access_sections.py takes them from here."""

    max_connections: int = 20_000
    max_connections_per_address: int = 1_000
    unlimited_addresses: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks whose addresses stand for many devices: for them `max_connections_per_address` does not hold."""
    max_awaiting_connect: int = 2_000
    """Sockets that have not sent CONNECT, TLS handshake and PROXY header included. One more closes the one that has been
    waiting for longest: who sends CONNECT at once gets through."""
    max_connect_rate: int = 1_000  # CONNECTs a second that are looked at
    max_waiting_connects: int = 5_000
    """CONNECTs whose turn has not come; a host may have as many as there is room left. Beyond, they are refused with 0x89."""
    max_unanswered_connects: int = 2_000
    """CONNECTs that the engine was told of and has not answered; others wait meanwhile."""
    max_connect_bytes: int = 32_768
    """Of a CONNECT, and of what a device sends before it is accepted."""
    max_connect_properties_bytes: int = 1_024  # of a CONNECT and its will together
    max_properties_bytes: int = 8_192  # of any other packet
    max_subscribe_filters: int = 256  # topic filters of one SUBSCRIBE or UNSUBSCRIBE
    max_will_bytes: int = 16_384  # topic, payload and properties
    max_topic_levels: int = 32  # of what is published, subscribed to, and of a will
    max_packet_rate: int = 2_000
    """Packets of any type a second of one connection; it is not read any faster. 64 bytes of properties, or a
    further topic filter, count like one more. 0 = no limit."""
    max_byte_rate: int = 4_194_304  # the same in bytes
    max_delay_ms: int = 5
    """While devices that send little wait for longer than this, every device has only a share of its rates, and CONNECTs have at
    least an eighth of theirs; 0 = they never have less. See sinks/mqtt/limits/fair_share.py."""
    max_keep_alive_s: int = 3_600
    """Of a device that asks for a longer one, or for none. MQTT 5 is told; MQTT 3.1.1 is not, and closed all the same when it is
    silent for one and a half times that."""
    tcp_keepalive_ms: int = 60_000
    """TCP asks a silent device after this long whether it is there, and closes after about twice as long; 0 = not at all."""
    max_total_unconfirmed_appends: int = 20_000
    """Records of all connections together that Kafka has not confirmed; beyond, the gateway reads from no device."""
    max_total_unconfirmed_bytes: int = 67_108_864  # the same in bytes
    max_total_buffered_bytes: int = 268_435_456
    """Of all connections together: packets that have not come to their end, messages that wait for their device, and what was
    written and not taken. Beyond, those that hold most are closed, until it is three quarters of that."""
    max_blocked_qos0_bytes: int = 1_048_576
    """QoS 0 messages written for a device that does not read, or that wait behind the fast path; beyond, they are dropped."""
