"""Makes the reference of the records that backends write and read, from the modules of state/records, with examples of the code."""

import inspect
import json
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Final

import msgspec

from docs.generate.markdown import NOTE, linked, table
from inflight.producer.message import MessageRecord, build_message, build_publication
from inflight.producer.settings import ProducerSettings
from state.commands import DeadLetter, ForwardPublication, SetPresence, SetThrottle, Transition
from state.model import Death, DeathHistory, Destination, DestinationKind, Message, Outcome, PublishProperties, QoS
from state.records import dead_letters, ledger, messages, presence, publications, receipts, throttle, uplink
from state.records.ledger import LedgerRow
from state.records.receipts import Receipt
from state.records.record import SinkRecord
from state.settings import RecordLimits, Topics
from streaming.config.settings import Settings
from streaming.config.units import format_duration
from streaming.topics import TopicPlan, planned_topics

_HEAD: Final = f"""# Records and headers

{NOTE}

What the public topics of Kafka hold. `inflight` in a topic's name is `topics.prefix`. Text is UTF-8, times are milliseconds since 1970. A later
version may add headers and fields; it changes none. The code has written the examples.

| topic | written by | read by |
|---|---|---|
| [`inflight.messages`](#inflightmessages) | backends; the matcher, for publications | the engine, gateways |
| [`inflight.publications`](#inflightpublications) | backends | matchers |
| [`inflight.uplink`](#inflightuplink) | gateways, bridges, the engine | backends, matchers, the archive |
| [`inflight.receipts`](#inflightreceipts) | the engine | backends, the archive |
| [`inflight.dead-letters`](#inflightdead-letters) | the engine | backends, the archive |
| [`inflight.presence`](#inflightpresence) | the engine | backends |
| [`inflight.throttle`](#inflightthrottle) | the engine, matchers | backends, gateways, matchers |
| [`inflight.ledger`](#inflightledger) | the engine | `inflight trace`, the archive |

The others are Inflight's own; [the last section](#all-topics) has them all.
"""
_TIME: Final = 1_767_225_600_000
_TOPICS: Final = Topics()
_LIMITS: Final = RecordLimits()


def page() -> str:
    """Returns the page."""
    settings = ProducerSettings()
    message = build_message(
        "pump-7", "cmd/reboot", b"now", settings=settings, qos=2, message_id="job-4711", expiration_ms=60_000,
        response_topic="client:app-7", user_properties={"by": "anna"},
    )  # fmt: skip
    publication = build_publication("plant/news", b"hello", settings=settings, message_id="news-1", retain=True)
    return "\n".join(
        [
            _HEAD,
            _section(_TOPICS.messages, messages, _produced(message)),
            _section(_TOPICS.publications, publications, _produced(publication)),
            _section(_TOPICS.uplink, uplink, _uplink()),
            _section(_TOPICS.receipts, receipts, _receipt()),
            "\n" + table(("field", "meaning"), _described(Receipt)),
            "\n[receipts.md](receipts.md) explains them; [receipt.schema.json](receipt.schema.json) is the JSON schema.",
            _section(_TOPICS.dead_letters, dead_letters, _dead_letter()),
            _section(_TOPICS.presence, presence, presence.presence_record(_TOPICS.presence, "pump-7", _ONLINE)),
            "\n" + table(("field", "meaning"), _described(presence.PresenceRecord)),
            _section(_TOPICS.throttle, throttle, throttle.throttle_record(_TOPICS.throttle, "pump-7", _THROTTLED)),
            _section(_TOPICS.ledger, ledger, _ledger()),
            "\n[codes.md](codes.md) has the transitions and outcomes.\n",
            "## All topics\n\nAs `inflight topics` creates them with the defaults. A compacted topic keeps the newest record of each key.\n",
            table(("topic", "partitions", "kept"), map(_planned, planned_topics(Settings()))),
            "",
        ]
    )


_ONLINE: Final = SetPresence(
    online=True, since_ms=_TIME, connection_id=1, gateway="gateway-1", protocol_version=5, session_expiry_interval_s=86_400
)
_DEAD: Final = "undelivered messages. The other topics to which exchanges send dead letters have the same records"
_THROTTLED: Final = SetThrottle(since_ms=_TIME, reason="800 messages wait in the queue; it has room again below 500")


def _section(topic: str, module: ModuleType, example: SinkRecord) -> str:
    """Returns the contract, which the docstring of the module is, and an example."""
    document = linked(re.sub(r"\s\(JSON schema[^()]*\)", "", inspect.cleandoc(module.__doc__ or "")))
    paragraphs = [
        _reflowed(part) for part in document.split("\n\n") if not part.startswith(("Both ends use", "`publication_in`"))
    ]
    first = re.sub(r"^Defines the records of `[^`]*`(?:, a public contract)?[:,]? ?", "", paragraphs[0])
    first = first.replace("and of the other topics to which exchanges send dead letters", _DEAD)
    body = "\n\n".join([first[:1].upper() + first[1:], *paragraphs[1:]])
    return f"\n## {topic}\n\n{body}\n\nExample:\n\n```text\n{_shown(example)}\n```"


def _described(kind: type[msgspec.Struct]) -> Iterable[tuple[str, str]]:
    properties = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    return [(f"`{name}`", about.get("description", "")) for name, about in properties.items()]


def _planned(topic: TopicPlan) -> tuple[str, str, str]:
    kept = "compacted" if topic.retention_ms is None else format_duration(topic.retention_ms)
    return f"`{topic.name}`", str(topic.partitions), kept


def _reflowed(paragraph: str) -> str:
    return paragraph if paragraph.startswith("|") else " ".join(paragraph.split())


def _shown(record: SinkRecord) -> str:
    """Returns a record as people read it."""
    lines = [f"key:    {record.key.decode()}"]
    lines += [f"header: {header.key} = {(header.value or b'').decode()}" for header in record.headers or ()]
    value = record.value or b""
    if value[:1] in (b"{", b"["):
        return "\n".join([*lines, "value:", json.dumps(json.loads(value), indent=2)])
    return "\n".join([*lines, f"value:  {value.decode()}"])


def _produced(record: MessageRecord) -> SinkRecord:
    assert record.key is not None, "the record names one client, or is a publication"
    return SinkRecord("", record.key, record.value, headers=_headers(record.headers))


def _headers(pairs: Iterable[tuple[str, bytes]]) -> tuple[messages.Header, ...]:
    return tuple(messages.Header(name, value) for name, value in pairs)


def _uplink() -> SinkRecord:
    command = ForwardPublication(
        publication_id="sensor-3:5:17", topic="plant/3/temperature", payload=b"21.5", qos=QoS.EXACTLY_ONCE, username="plant-3",
        properties=PublishProperties(content_type="text/plain"),
    )  # fmt: skip
    return uplink.uplink_record(_TOPICS.uplink, "sensor-3", command, _TIME)


def _receipt() -> SinkRecord:
    receipt = Receipt(
        message_id="job-4711", client_id="pump-7", outcome=Outcome.DELIVERED, reason_code=0, attempts=1, accepted_ms=_TIME,
        first_sent_ms=_TIME + 2, outcome_ms=_TIME + 19, recorded_ms=_TIME + 500, detail="", final=True, destinations=(), deaths=0, correlation_data=None,
        fast_path=True, traceparent=None,
    )  # fmt: skip
    (record,) = receipts.receipt_records(receipt, None, _TOPICS, max_client_id_bytes=_LIMITS.max_client_id_bytes)
    return record


def _dead_letter() -> SinkRecord:
    death = Death(
        queue="pump-7",
        reason=Outcome.EXPIRED,
        time_ms=_TIME + 60_000,
        exchange="",
        routing_keys=("pump-7",),
        original_expiration_ms=60_000,
    )
    history = DeathHistory(
        deaths=(death,), first_reason=Outcome.EXPIRED, first_queue="pump-7", first_exchange="", last_exchange="",
        last_time_ms=death.time_ms, exchange="", routing_key="pump-7",
    )  # fmt: skip
    message = Message(
        message_id="job-4711", topic="cmd/reboot", payload=b"now", qos=QoS.EXACTLY_ONCE, accepted_ms=_TIME, history=history
    )
    letter = DeadLetter(
        message=message, reason=Outcome.EXPIRED, time_ms=death.time_ms, detail="",
        destination=Destination(kind=DestinationKind.TOPIC, name=_TOPICS.dead_letters),
    )  # fmt: skip
    return dead_letters.dead_letter_record(letter, client_id="pump-7", topics=_TOPICS, limits=_LIMITS)


def _ledger() -> SinkRecord:
    rows = [
        LedgerRow(
            client_id="pump-7", batch_ms=_TIME + 500, transition=Transition.FAST_SENT, time_ms=_TIME + 2, message_id="job-4711",
            packet_id=1, attempt=1,
        ),
        LedgerRow(
            client_id="pump-7", batch_ms=_TIME + 500, transition=Transition.FINISHED, time_ms=_TIME + 19, message_id="job-4711",
            packet_id=1, attempt=1, outcome=Outcome.DELIVERED,
        ),
    ]  # fmt: skip
    (record,) = ledger.ledger_records(_TOPICS.ledger, "pump-7", rows, max_record_bytes=1_000_000)
    return record
