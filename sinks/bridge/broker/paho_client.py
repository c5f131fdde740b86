"""Makes and dials paho clients with the bridge's settings."""

from typing import Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties

from sinks.bridge.broker.paho_properties import connect_properties
from sinks.bridge.settings import BridgeSettings

V5: Final = 5


def new_client(settings: BridgeSettings, *, client_id: str, clean: bool) -> mqtt.Client:
    """Makes a client without callbacks. clean: the broker forgets the session of an earlier connection."""
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=None if settings.mqtt_version >= V5 else clean,
        protocol=MQTTProtocolVersion(settings.mqtt_version),
        reconnect_on_failure=False,
        manual_ack=True,
    )
    client.max_inflight_messages = 0  # counted in BrokerConnection, because the broker's Receive Maximum comes too late for paho
    client.connect_timeout = settings.connect_timeout_ms / 1_000
    if settings.username is not None:
        client.username_pw_set(settings.username, settings.password)
    if settings.tls:
        client.tls_set(
            ca_certs=settings.tls_cafile or None,
            certfile=settings.tls_certfile or None,
            keyfile=settings.tls_keyfile or None,
        )
    return client


def dial(client: mqtt.Client, settings: BridgeSettings, *, clean: bool) -> None:
    """Does TCP, TLS and CONNECT. It blocks, so call it in a worker thread. Raises OSError, ValueError."""
    properties: Properties | None = None
    clean_start: mqtt.CleanStartOption = mqtt.MQTT_CLEAN_START_FIRST_ONLY
    if settings.mqtt_version >= V5:
        clean_start = clean
        properties = connect_properties(
            session_expiry_s=0 if clean else settings.session_expiry_s,
            receive_maximum=settings.receive_maximum,
            maximum_packet_size_bytes=settings.max_packet_size_bytes,
        )
    client.connect(settings.host, settings.port, settings.keep_alive_s, clean_start=clean_start, properties=properties)
