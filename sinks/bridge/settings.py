"""What a bridge may be told. Plain values: reading, checking and explaining them is the host's work (streaming/config)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from state.settings import BackoffSettings


class Acknowledgement(StrEnum):
    """Whose word ends a delivery."""

    DEVICE = "device"
    """The device's own, end to end (docs/bridge.md says how it gives it)."""
    BROKER = "broker"
    """The broker's PUBACK or PUBCOMP: whether the device got the message nobody knows."""


class Presence(StrEnum):
    """How the bridge learns which devices are there."""

    TOPIC = "topic"
    """Devices publish retained birth and will messages."""
    EVENTS = "events"
    """The broker publishes JSON events with the client id."""
    ALWAYS = "always"
    """A list, and whoever is heard of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSettings:
    """Which broker one bridge serves, by which topics, and which Kafka it talks to.

    These are the defaults of [bridge], too: streaming/config/mqtt_sections.py takes them from here.
    """

    name: str = "inflight-bridge"
    """Of this bridge at the broker, where its subscriptions are kept while it is away: stable over restarts, and no two bridges
    share one."""
    host: str = "127.0.0.1"
    port: int = 1883
    mqtt_version: int = 5  # 4 for MQTT 3.1.1
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_cafile: str = ""  # PEM; empty = the system's authorities
    tls_certfile: str = ""  # PEM; empty = no client certificate
    tls_keyfile: str = ""
    acknowledgement: Acknowledgement = Acknowledgement.DEVICE
    topic_template: str = "devices/{client_id}/{topic}"
    """Where messages go; with {message_id} (percent-encoded) where devices speak MQTT 3.1.1."""
    ack_topic_template: str = "devices/{client_id}/ack"  # where devices acknowledge
    presence: Presence = Presence.TOPIC
    presence_topic_template: str = "devices/{client_id}/presence"
    presence_online: tuple[str, ...] = ("online",)  # payloads that mean "here", lower case
    connected_topics: tuple[str, ...] = ("$events/client_connected",)  # the broker's own events
    disconnected_topics: tuple[str, ...] = ("$events/client_disconnected",)
    clients: tuple[str, ...] = ()  # those that are there whatever is heard
    uplink_topic_templates: tuple[str, ...] = ("devices/{client_id}/up/{topic}",)
    """What devices publish for backends; {topic} is the rest of the topic."""
    uplink_group: str = "inflight"
    """Of the shared subscription `$share/GROUP/…`; empty = none, and then every bridge writes every publication."""
    publish_quota: int = 1_000
    """QoS 1 and 2 messages on their way to the broker at once; the broker's Receive Maximum may be smaller."""
    receive_maximum: int = 1_000  # messages of the broker that Kafka has not confirmed; our Receive Maximum
    keep_alive_s: int = 10
    connect_timeout_ms: int = 10_000  # from the socket to SUBACK
    session_expiry_s: int = 86_400
    """How long the broker keeps for us what it would have sent while we were away (MQTT 5; 3.1.1: as it likes)."""
    max_packet_size_bytes: int = 524_288
    backoff: BackoffSettings = field(default_factory=lambda: BackoffSettings(max_ms=30_000))
    """Waits between connections, and after the broker's 0x97."""
    bootstrap_servers: str = "127.0.0.1:9092"
    events_topic: str = "inflight.events"
    commands_topic: str = "inflight.commands"
    uplink_topic: str = "inflight.uplink"
    leases_topic: str = "inflight.leases"
    group_id: str = "inflight-bridges"
    group_instance_id: str | None = None
    group_session_timeout_ms: int = 10_000
    lease_ms: int = 30_000
    """A bridge that Kafka has confirmed nothing for this long takes its devices offline; half as long after, the engine does."""
    append_timeout_ms: int = 30_000
    stop_timeout_ms: int = 5_000
    producer_linger_ms: int = 0
    fetch_max_wait_ms: int = 250
    kafka_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
