"""The settings of a bridge: the keys of [bridge]."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sinks.kafka.host_settings import HostSettings
from state.setting import KIB, MIB, MINUTE, Setting
from state.settings import BackoffSettings


class Acknowledgement(StrEnum):
    """Selects whose acknowledgement ends a delivery."""

    DEVICE = "device"
    """The device's own, end to end (docs/guides/bridge.md describes it)."""
    BROKER = "broker"
    """The broker's PUBACK or PUBCOMP. Whether the device got the message is unknown."""


class PresenceSource(StrEnum):
    """Selects how the bridge learns which devices are online."""

    TOPIC = "topic"
    """Devices publish retained birth and will messages."""
    EVENTS = "events"
    """The broker publishes JSON events with the client id."""
    ALWAYS = "always"
    """A list of clients, and every device that acknowledges or publishes."""


_VERSIONS: Final = {"5": 5, "3.1.1": 4}


def _read_version(value: object) -> int:
    if value not in _VERSIONS:
        raise ValueError('this is no version: "5" and "3.1.1" are possible')
    return _VERSIONS[str(value)]


def _show_version(value: object) -> str:
    return next(name for name, level in _VERSIONS.items() if level == value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSettings(HostSettings):
    """The client of an MQTT broker that you already run (`inflight bridge`); docs/guides/bridge.md explains it."""

    name: str = Setting(
        "client id at the broker, which keeps the bridge's subscriptions by it: the same after a restart, one for each bridge",
        min_length=1,
        max_length=200,
    ).default("inflight-bridge")
    host: str = Setting("the broker's address", min_length=1).default("127.0.0.1")
    port: int = Setting("the broker's port; mostly 8883 with TLS", (1, 65_535)).default(1883)
    mqtt_version: int = Setting("of the connection to the broker: 5 or 3.1.1", read=_read_version, show=_show_version).default(5)
    username: str | None = Setting("user name at the broker; empty = none", none="").default(None)
    password: str | None = Setting("best given as INFLIGHT__BRIDGE__PASSWORD; never shown", none="", secret=True).default(None)
    tls: bool = Setting("encrypt, and verify the broker's certificate").default(False)
    tls_cafile: str = Setting("PEM file of the authorities that may have signed it; empty = those of the system").default("")
    tls_certfile: str = Setting("PEM file of a client certificate; empty = none").default("")
    tls_keyfile: str = Setting("PEM file of its key").default("")
    acknowledgement: Acknowledgement = Setting(
        "which acknowledgement ends a delivery: device = the device's own, end to end; broker = the broker's PUBACK or PUBCOMP"
    ).default(Acknowledgement.DEVICE)
    topic_template: str = Setting(
        "topic of a message; with {message_id} as a level of its own, devices that speak MQTT 3.1.1 can acknowledge"
    ).default("devices/{client_id}/{topic}")
    ack_topic_template: str = Setting("topic on which devices acknowledge").default("devices/{client_id}/ack")
    presence: PresenceSource = Setting(
        "how the bridge knows which devices are online: topic = retained birth and will messages; events = the broker's JSON "
        "events; always = the list `clients`, and every device that acknowledges or publishes"
    ).default(PresenceSource.TOPIC)
    presence_topic_template: str = Setting("topic of birth and will messages").default("devices/{client_id}/presence")
    presence_online: tuple[str, ...] = Setting("payloads, in lower case, that mean online", min_length=1).default(("online",))
    connected_topics: tuple[str, ...] = Setting(
        "topics of the broker's events of connects, with a client id in `clientid`, for presence = events"
    ).default(("$events/client_connected",))
    disconnected_topics: tuple[str, ...] = Setting("topics of its events of disconnects").default(
        ("$events/client_disconnected",)
    )
    clients: tuple[str, ...] = Setting("client ids that are online from the start, for presence = always").default(())
    uplink_topic_templates: tuple[str, ...] = Setting(
        "topics on which devices publish for backends: it goes to PREFIX.uplink; {topic} is the rest of the topic"
    ).default(("devices/{client_id}/up/{topic}",))
    uplink_group: str = Setting(
        "bridges share this reading as $share/GROUP/…; empty = each bridge writes everything: run one, or give the others no "
        "uplink_topic_templates",
        pattern=r"^[^/+#]*$",
    ).default("inflight")
    publish_quota: int = Setting(
        "QoS 1 and 2 messages to the broker unacknowledged at once; its Receive Maximum may be smaller", (1, 65_535)
    ).default(1_000)
    receive_maximum: int = 1_000  # messages of the broker that Kafka has not confirmed; the bridge's Receive Maximum
    keep_alive_s: int = Setting("a broker that is silent for twice as long is left", (1, 3_600), key="keep_alive_ms").default(10)
    connect_timeout_ms: int = Setting("from the socket to the answered subscriptions", (100, 5 * MINUTE)).default(10_000)
    session_expiry_s: int = Setting(
        "how long the broker keeps publications while no bridge is connected (MQTT 5; with 3.1.1 it decides)",
        (0, 365 * 86_400),
        key="session_expiry_ms",
    ).default(86_400)
    max_packet_size_bytes: int = Setting("largest packet accepted from the broker", (KIB, 64 * MIB)).default(524_288)
    backoff: BackoffSettings = Setting().default(BackoffSettings(max_ms=30_000))  # also between connections
    group_id: str = Setting("consumer group by which bridges share PREFIX.commands", min_length=1).default("inflight-bridges")
