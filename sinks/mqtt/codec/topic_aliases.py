"""Assigns topic aliases to the PUBLISHes for one device, in the order in which they are written (MQTT 5, 3.3.2.3.4).

1. A topic gets the next free alias. The packet that assigns it has topic and alias; later ones have the alias and no topic.
2. When all aliases are assigned, further topics get none.
3. An alias that makes a packet too large for the client is left out of that packet [MQTT-3.1.2-24].
"""

from typing import Final

from sinks.mqtt.codec.packets import Content, EncodePublish
from state.model import PacketId, QoS

MAX_ALIASES: Final = 16
MAX_TOPIC_LENGTH: Final = 256
"""Characters of a topic with an alias. The gateway keeps these topics in memory for each connection."""


class TopicAliases:
    """The topic aliases of one connection.

    Args:
        client_maximum: The Topic Alias Maximum of its CONNECT [MQTT-3.1.2-26].
        encode: The encoder of its MQTT version.
        max_packet_size_bytes: None = no limit.
    """

    __slots__ = ("_aliases", "_encode", "_max_packet_size_bytes", "_maximum")

    def __init__(self, client_maximum: int, encode: EncodePublish, max_packet_size_bytes: int | None) -> None:
        self._maximum = min(client_maximum, MAX_ALIASES)
        self._encode = encode
        self._max_packet_size_bytes = max_packet_size_bytes
        self._aliases: dict[str, int] = {}

    def encode_publish(
        self,
        content: Content,
        *,
        qos: QoS,
        packet_id: PacketId,
        dup: bool = False,
        expiry_interval_s: int | None = None,
        subscription_ids: tuple[int, ...] = (),
    ) -> bytes:
        """Encodes a PUBLISH, see EncodePublish. It must be written before the next one is encoded."""
        aliases, topic = self._aliases, content.topic
        known = aliases.get(topic, 0)
        alias = known
        if not known and len(aliases) < self._maximum and len(topic) <= MAX_TOPIC_LENGTH:
            alias = len(aliases) + 1
        if alias:
            data = self._encode(
                content,
                qos=qos,
                packet_id=packet_id,
                dup=dup,
                expiry_interval_s=expiry_interval_s,
                subscription_ids=subscription_ids,
                topic_alias=alias,
                omits_topic=known > 0,
            )
            if self._max_packet_size_bytes is None or len(data) <= self._max_packet_size_bytes:
                aliases[topic] = alias
                return data
        return self._encode(
            content,
            qos=qos,
            packet_id=packet_id,
            dup=dup,
            expiry_interval_s=expiry_interval_s,
            subscription_ids=subscription_ids,
        )
