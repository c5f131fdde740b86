"""Makes the reference of outcomes, transitions and reason codes from the enumerations, and of ends of connections from the code."""

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import Final

from docs.generate.markdown import NOTE, linked, table
from docs.generate.source import modules, text_of
from state.commands import Transition
from state.model import DEAD_LETTERED, Outcome, ReasonCode

_ENDINGS: Final = ("CloseReason", "ProtocolViolation", "ConnectionRefused")
_HEAD: Final = f"""# Outcomes and reason codes

{NOTE}

## Outcomes

How a message left its session: the field `outcome` of its receipt and of its last ledger row.
"""
_WHERE: Final = {
    ReasonCode.SUCCESS: "every answer that accepts; DISCONNECT of a device that wants no will",
    ReasonCode.DISCONNECT_WITH_WILL: "DISCONNECT of a device that wants its will published",
    ReasonCode.NO_MATCHING_SUBSCRIBERS: "PUBACK and PUBREC of a device: success, too",
    ReasonCode.NO_SUBSCRIPTION_EXISTED: "UNSUBACK: there was no such subscription",
    ReasonCode.UNSPECIFIED_ERROR: "SUBACK: with MQTT 3.1.1 every refusal, with MQTT 5 a filter that a `not_subscribe` rule names",
    ReasonCode.MALFORMED_PACKET: "a packet that breaks the format closes the connection",
    ReasonCode.PROTOCOL_ERROR: "a packet that may not come now closes the connection",
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: 'a quarantined client; `retry_mqtt5 = "reconnect"`; UNSUBACK beyond `limits.max_subscribe_filters`; a bug',
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "CONNACK: neither MQTT 3.1.1 nor MQTT 5",
    ReasonCode.CLIENT_ID_NOT_VALID: "CONNACK: the client id is empty, too long, has control characters, or no rule allows it",
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "CONNACK: no login, or a wrong one",
    ReasonCode.NOT_AUTHORIZED: "CONNACK, PUBACK, PUBREC, SUBACK: no rule allows it; DISCONNECT: the login has ended; of a device: dead letter `rejected`",
    ReasonCode.SERVER_UNAVAILABLE: "CONNACK: the gateway is stopping, has no lease or lacks a key, or the engine did not answer",
    ReasonCode.SERVER_BUSY: "too many CONNECTs or failed logins, Kafka does not confirm, a partition moves, a later connection is known",
    ReasonCode.SERVER_SHUTTING_DOWN: "DISCONNECT: the gateway is stopping",
    ReasonCode.BAD_AUTHENTICATION_METHOD: "CONNACK and DISCONNECT: no authentication method is offered",
    ReasonCode.KEEP_ALIVE_TIMEOUT: "DISCONNECT: silence for one and a half keep alives, or a device that takes nothing",
    ReasonCode.SESSION_TAKEN_OVER: "DISCONNECT: another connection uses this client id",
    ReasonCode.TOPIC_FILTER_INVALID: "SUBACK and UNSUBACK: the filter is not valid",
    ReasonCode.TOPIC_NAME_INVALID: "a PUBLISH or will to what is no topic name, or has too many levels; of a device: dead letter `rejected`",
    ReasonCode.PACKET_ID_IN_USE: "PUBREC of a device",
    ReasonCode.PACKET_ID_NOT_FOUND: "PUBREL and PUBCOMP for an unknown packet id",
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: "DISCONNECT: more publications in flight than CONNACK allows",
    ReasonCode.TOPIC_ALIAS_INVALID: "DISCONNECT: a topic alias of 0, or above the maximum",
    ReasonCode.PACKET_TOO_LARGE: "a packet larger than `gateway.max_packet_size_bytes`; Kafka refuses the record",
    ReasonCode.MESSAGE_RATE_TOO_HIGH: "DISCONNECT of a broker, with the bridge: it waits",
    ReasonCode.QUOTA_EXCEEDED: "a limit of the gateway (PUBACK, PUBREC, SUBACK, CONNACK); of a device: it backs off and gets the message again",
    ReasonCode.ADMINISTRATIVE_ACTION: "DISCONNECT of a device",
    ReasonCode.PAYLOAD_FORMAT_INVALID: "PUBACK and PUBREC of a device: dead letter `rejected`",
    ReasonCode.RETAIN_NOT_SUPPORTED: "CONNACK and DISCONNECT: without routing nothing is retained",
    ReasonCode.QOS_NOT_SUPPORTED: "of a broker, with the bridge",
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "SUBACK: without routing there are none",
    ReasonCode.SUBSCRIPTION_IDS_NOT_SUPPORTED: "DISCONNECT: without routing there are none",
}
"""Says in words where each code is sent or read."""


def page() -> str:
    """Returns the page."""
    outcomes = [
        (f"`{outcome}`", meaning, "yes" if outcome in DEAD_LETTERED else "always" if outcome is Outcome.QUARANTINED else "")
        for outcome, meaning in documented(Outcome)
    ]
    transitions = [(f"`{transition}`", meaning) for transition, meaning in documented(Transition)]
    ends = ends_of_connections()
    codes = [(f"0x{code.value:02X}", code.name.replace("_", " ").capitalize(), _WHERE[code]) for code in ReasonCode]
    closing = [(f"0x{code.value:02X}", "; ".join(ends[code.name])) for code in ReasonCode if code.name in ends]
    return "\n".join(
        [
            _HEAD,
            table(("outcome", "the message", "dead letter"), outcomes),
            "\nA policy may suppress a dead letter marked `yes`.\n",
            "## Transitions\n\nThe kinds of rows of the ledger, which `inflight trace` shows.\n",
            table(("transition", "what happened"), transitions),
            "\n## Reason codes\n\nThe codes of MQTT 5 that Inflight sends or evaluates. MQTT 3.1.1 has codes in CONNACK only (1 to 5), and 0x80 in SUBACK.\n",
            table(("code", "name in MQTT 5", "where"), codes),
            "\n## Ends of connections\n\nThe reasons for which a gateway refuses or closes a connection, by the code that CONNACK or DISCONNECT has. "
            "`…` stands for a value.\n",
            table(("code", "reasons"), closing),
            "",
        ]
    )


def documented(kind: type[Enum]) -> Iterator[tuple[Enum, str]]:
    """Yields each member with the text behind it in the source. Raises if a member has none."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for statement, after in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                raise ValueError(f"{kind.__name__}.{statement.targets[0].id} has no text behind it that says what it means")
            yield kind[statement.targets[0].id], linked(inspect.cleandoc(str(after.value.value)))


def ends_of_connections() -> dict[str, list[str]]:
    """Returns the texts of all ends that name a code, by the name of the code."""
    found: dict[str, list[str]] = defaultdict(list)
    for where, tree in modules():
        if not where.startswith("sinks/mqtt/") and where != "state/session.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ENDINGS and node.args:
                named = [
                    argument for argument in (*node.args[1:], *(keyword.value for keyword in node.keywords)) if _code(argument)
                ]
                text = text_of(node.args[0])
                code = _code(named[0]) if named else "PROTOCOL_ERROR" if node.func.id == "ProtocolViolation" else ""
                if text and code and text not in found[code]:
                    found[code].append(text)
    return found


def _code(node: ast.expr) -> str:
    return (
        node.attr
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ReasonCode"
        else ""
    )
