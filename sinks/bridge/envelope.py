"""Makes the properties of a message for the broker, and reads a device's acknowledgement. docs/guides/bridge.md is the contract.

Down, MQTT 5: user properties `inflight-message-id` and `inflight-bridge`; in `device` mode at QoS 1 and 2 also Response Topic
(where to acknowledge) and Correlation Data (the message id). The backend's own values of those two are then in the user
properties `inflight-response-topic` and `inflight-correlation-data` (base64). MQTT 3.1.1: the message id is a level of the topic,
if the template has it.

Up: an acknowledgement is JSON, `{"id": MESSAGE_ID, "reason_code": NUMBER}`. id may be left out when Correlation Data has it,
and reason_code when it is 0. The payload may be empty when both may be left out.
"""

from base64 import b64encode
from typing import Final

import msgspec

from state.commands import SendPublish
from state.errors import UNDECODABLE
from state.model import MessageId, PublishProperties, QoS, ReasonCode

MESSAGE_ID_PROPERTY: Final = "inflight-message-id"
BRIDGE_PROPERTY: Final = "inflight-bridge"
"""The name of the bridge that has published a message. No bridge reads a message with it as a publication of a device."""
RESPONSE_TOPIC_PROPERTY: Final = "inflight-response-topic"
CORRELATION_DATA_PROPERTY: Final = "inflight-correlation-data"

_MAX_REASON_CODE: Final = 0xFF


class Acknowledged(msgspec.Struct, frozen=True):
    """A device's acknowledgement of one message."""

    message_id: MessageId
    reason_code: int = ReasonCode.SUCCESS


class UnreadableAcknowledgement(ValueError):
    """The bytes are no acknowledgement; the text says what is expected."""


class _Answer(msgspec.Struct):
    id: str = ""
    reason_code: int = ReasonCode.SUCCESS


_answers: Final = msgspec.json.Decoder(_Answer)


def read_acknowledgement(payload: bytes, correlation_data: bytes | None) -> Acknowledged:
    """Reads an acknowledgement. Raises UnreadableAcknowledgement."""
    try:
        answer = _answers.decode(payload) if payload else _Answer()
        message_id = answer.id or (correlation_data or b"").decode()
    except UNDECODABLE as error:
        raise UnreadableAcknowledgement(f'{error}; expected is {{"id": "…", "reason_code": 0}}') from error
    if not message_id:
        raise UnreadableAcknowledgement("no message id: copy Correlation Data (MQTT 5), or say it in the JSON as id")
    if not 0 <= answer.reason_code <= _MAX_REASON_CODE:
        raise UnreadableAcknowledgement(f"reason_code {answer.reason_code}: 0 … 255 are allowed, as in a PUBACK")
    return Acknowledged(message_id, answer.reason_code)


def properties_for_device(command: SendPublish, ack_topic: str | None, *, bridge: str) -> PublishProperties:
    """Returns the properties of the PUBLISH to the broker.

    Args:
        ack_topic: None = the broker's answer is the acknowledgement.
        bridge: The name of the bridge.

    Where devices acknowledge, a Response Topic asks for it, so at QoS 0 there is none.
    """
    properties = command.properties
    user_properties = [*properties.user_properties, (MESSAGE_ID_PROPERTY, command.message_id), (BRIDGE_PROPERTY, bridge)]
    if ack_topic is None:
        return msgspec.structs.replace(properties, user_properties=tuple(user_properties))
    if properties.response_topic is not None:
        user_properties.append((RESPONSE_TOPIC_PROPERTY, properties.response_topic))
    if properties.correlation_data is not None:
        user_properties.append((CORRELATION_DATA_PROPERTY, b64encode(properties.correlation_data).decode()))
    wants_answer = command.qos != QoS.AT_MOST_ONCE
    return msgspec.structs.replace(
        properties,
        response_topic=ack_topic if wants_answer else None,
        correlation_data=command.message_id.encode() if wants_answer else None,
        user_properties=tuple(user_properties),
    )
