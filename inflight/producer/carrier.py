"""One session of Kafka's idempotent producer, and the thread that opens the next one.

What was measured about kafka-python 3.0.12, and follows from it here (docs/producer.md has the numbers):
- It repeats a batch under the same producer id and sequence number for as long as it is allowed to, and the broker keeps one
  copy, also over a SIGSTOP, a SIGKILL and a restart of the broker. So a record is handed over once and the library may repeat it
  for ever.
- A batch that reaches `delivery_timeout_ms` after a lost answer resets the producer id, and the library never asks for another:
  every later record waits for ever, `close` included. So that time-out is out of reach; the send loop has its own.
- An answer that forbids a retry (too large, not authorised) ends the library's session: every later record gets the same error.
  So the records that were not refused themselves are handed to a new session.
"""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import structlog
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import (
    AuthorizationError,
    InvalidTopicError,
    KafkaConfigurationError,
    KafkaError,
    MessageSizeTooLargeError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)

from inflight.producer.model import Cause
from inflight.producer.send import Carrier, Send, SendRefused
from inflight.producer.settings import ProducerSettings
from inflight.producer.wire_watch import FailedTry, RecordKey, WireWatch
from sinks.kafka.partitioning import partition_of
from sinks.kafka.producers import abandon

_NEVER_MS: Final = 7 * 24 * 3_600_000
_KEYS_REMEMBERED: Final = 65_536
_RETRY_OPEN_S: Final = 0.2
_BOOTSTRAP_TIMEOUT_MS: Final = 5_000
_JOIN_S: Final = 10.0
_PERMANENT: Final = (
    AuthorizationError,
    InvalidTopicError,
    KafkaConfigurationError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
    ValueError,
)

_log: Final = structlog.get_logger(__name__)


class Reports(Protocol):
    """What a carrier says to the send loop; called on kafka-python's network thread, must not block."""

    def confirmed(self, send: Send, partition: int, offset: int) -> None: ...

    def try_failed(self, send: Send, cause: Cause, error: str, began_ms: float, answered: bool) -> None: ...

    def carrier_lost(self, send: Send, error: str, permanent: bool, unanswered: bool) -> None: ...

    def carrier_ended(self, carrier: Carrier) -> None: ...

    def carrier_opened(self, carrier: Carrier) -> None: ...

    def carrier_unavailable(self, reason: str, permanent: bool) -> None: ...


class KafkaCarrier:
    """Carrier on one KafkaProducer. Raises KafkaError when no broker answers."""

    def __init__(self, *, bootstrap_servers: str, settings: ProducerSettings, reports: Reports) -> None:
        self._reports = reports
        self._topic = settings.topic
        self._watch = WireWatch(self._try_failed)
        self._sends: dict[RecordKey, Send] = {}
        self._refusals: dict[RecordKey, str] = {}
        config: dict[str, Any] = {
            **client_config(bootstrap_servers, settings),
            "acks": "all",
            "enable_idempotence": True,
            "request_timeout_ms": settings.attempt_timeout_ms,
            "delivery_timeout_ms": _NEVER_MS,
            "retry_backoff_ms": 50,
            "kafka_client": self._watch.client,
            **settings.kafka_options,
        }
        require_topic(bootstrap_servers, settings)
        self._producer = KafkaProducer(**config)
        try:
            partitions = self._producer.partitions_for(self._topic)
        except BaseException:
            self.release()
            raise
        self._partitions = len(partitions)

    def carry(self, send: Send) -> bool:
        message = send.message
        key = RecordKey(message.key, message.message_id.encode())
        self._sends[key] = send
        try:
            future = self._producer.send(
                self._topic,
                value=message.value,
                key=message.key,
                headers=message.headers,
                partition=partition_of(message.key, self._partitions),
            )
        except MessageSizeTooLargeError as error:
            del self._sends[key]
            raise SendRefused(str(error)) from error
        except (KafkaError, AssertionError, ValueError) as error:
            del self._sends[key]
            _log.info("producer_session_ended", error=repr(error))
            return False
        future.add_both(self._settled, key, send)
        return True

    def release(self) -> None:
        threading.Thread(target=abandon, args=(self._producer,), name="inflight-producer-end", daemon=True).start()

    # --- on the network thread of the producer --------------------------------------------------------------------------------

    def _settled(self, key: RecordKey, send: Send, outcome: Any) -> None:
        if not isinstance(outcome, BaseException):
            self._forget(key, send)
            self._reports.confirmed(send, outcome.partition, outcome.offset)
            return
        refusal = self._refusals.pop(key, None)
        if refusal is not None:
            self._forget(key, send)
            self._reports.carrier_lost(send, refusal, True, False)
            return
        error = f"Kafka's client gave it up ({type(outcome).__name__}: {outcome})"
        if self._watch.follow(key, partial(self._answered, key, send, error)):
            # The session ended because of another record, while this one was on the wire: the answer still comes.
            self._reports.carrier_ended(self)
        else:
            self._forget(key, send)
            self._reports.carrier_lost(send, error, False, False)

    def _answered(self, key: RecordKey, send: Send, error: str, partition: int | None, offset: int, what: str) -> None:
        self._forget(key, send)
        if partition is None:
            # Whether this means "no" or "nobody knows" has been reported by _try_failed.
            self._reports.carrier_lost(send, f"{error}, {what}", False, False)
        else:
            self._reports.confirmed(send, partition, offset)

    def _forget(self, key: RecordKey, send: Send) -> None:
        if self._sends.get(key) is send:  # and not the same message, sent again by the caller
            del self._sends[key]

    def _try_failed(self, failure: FailedTry) -> None:
        if failure.permanent:
            self._refusals[failure.record] = failure.error
            return
        send = self._sends.get(failure.record)
        if send is not None:
            self._reports.try_failed(send, failure.cause, failure.error, failure.began_ms, failure.answered)


class CarrierOpener:
    """Opens a carrier whenever one is wanted, in a thread of its own, until it succeeds.

    before_first: awaited once between opening and reporting the first carrier (the throttle table must be known).
    """

    def __init__(
        self, *, bootstrap_servers: str, settings: ProducerSettings, reports: Reports, before_first: Callable[[], None]
    ) -> None:
        self._servers = bootstrap_servers
        self._settings = settings
        self._reports = reports
        self._before_first: Callable[[], None] | None = before_first
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-producer-open", daemon=True)

    def start(self) -> None:
        self._wanted.set()
        self._thread.start()

    def want(self) -> None:
        self._wanted.set()

    def close(self) -> None:
        """Returns at once; a carrier that opens after all is reported, and whoever gets it must release it."""
        self._stopping.set()
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            while not self._stopping.is_set() and not self._try_open():
                self._stopping.wait(_RETRY_OPEN_S)
            if self._stopping.is_set():
                return

    def _try_open(self) -> bool:
        try:
            carrier = KafkaCarrier(bootstrap_servers=self._servers, settings=self._settings, reports=self._reports)
        except Exception as error:  # noqa: BLE001
            # Anything: the sends that wait are told, and the next try may succeed.
            reason = f"{self._servers}: {type(error).__name__}: {error}"
            if isinstance(error, InvalidTopicError):
                reason = f"topic {self._settings.topic} does not exist at {self._servers}; create it with `inflight topics`"
            self._reports.carrier_unavailable(reason, isinstance(error, _PERMANENT))
            return False
        if self._before_first is not None:
            self._before_first()
            self._before_first = None
        self._reports.carrier_opened(carrier)
        return True


def require_topic(bootstrap_servers: str, settings: ProducerSettings) -> None:
    """Raises InvalidTopicError when the brokers say that there is no such topic; the producer itself would only wait for it."""
    config: dict[str, Any] = {
        "bootstrap_servers": bootstrap_servers,
        "bootstrap_timeout_ms": _BOOTSTRAP_TIMEOUT_MS,
        "request_timeout_ms": _BOOTSTRAP_TIMEOUT_MS,
        **settings.kafka_options,
    }
    admin = KafkaAdminClient(**config)
    try:
        if settings.topic not in admin.list_topics():
            raise InvalidTopicError(settings.topic)
    finally:
        admin.close()


def client_config(bootstrap_servers: str, settings: ProducerSettings) -> Mapping[str, Any]:
    """What every KafkaProducer of ours has in common."""
    return {
        "bootstrap_servers": bootstrap_servers,
        "bootstrap_timeout_ms": _BOOTSTRAP_TIMEOUT_MS,
        "linger_ms": settings.linger_ms,
        "batch_size": settings.batch_bytes,
        "compression_type": settings.compression,
        # Above everything that the engine accepts, so the limits that count are the ones in ProducerSettings.
        "max_request_size": 4 * (settings.max_payload_bytes + settings.max_headers_bytes) + 65_536,
        "max_block_ms": 2_000,
        "reconnect_backoff_max_ms": 1_000,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }
