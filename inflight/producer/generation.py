"""Generations of Kafka's idempotent producer: one KafkaProducer each, and the thread that opens the next.

What was measured about kafka-python 3.0.12 (docs/producer.md has the table), and follows from it here:
- It repeats a batch under the same producer id and sequence number for as long as it is allowed to, and the broker keeps one
  copy, also over a SIGSTOP, a SIGKILL and a restart of the broker. So a record is handed over once and the library may repeat it
  for ever.
- A batch that reaches `delivery_timeout_ms` after a lost answer resets the producer id, and the library never asks for another:
  every later record waits for ever, `close` included. So that time-out is out of reach; the send loop has its own.
- An answer that forbids a retry (not authorised, too large) ends the producer: every later record gets the same error. So the
  records that were not refused themselves go with the next generation, and what is too large is not handed over at all.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    AuthorizationError,
    InvalidTopicError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)

from inflight.producer.connect_timeouts import connect_timeouts
from inflight.producer.request_watch import FailedTry, RecordKey, RequestWatch
from inflight.producer.send_loop.loop import Report
from inflight.producer.send_loop.send import Send, SendRefused
from inflight.producer.settings import ProducerSettings
from sinks.kafka.kafka_python import abandon
from sinks.kafka.partitioning import partition_of

_NEVER_MS: Final = 7 * 24 * 3_600_000
_RETRY_OPEN_S: Final = 0.2
_MAX_RECORD: Final = "max.message.bytes"
_PERMANENT: Final = (
    AuthorizationError,
    InvalidTopicError,
    KafkaConfigurationError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
    ValueError,
)

_log: Final = structlog.get_logger(__name__)


class KafkaGeneration:
    """Generation on one KafkaProducer. post: takes what happens to the records. Raises KafkaError when no broker answers."""

    def __init__(self, bootstrap_servers: str, settings: ProducerSettings, post: Callable[[Report], None]) -> None:
        self._post = post
        self._topic = settings.topic
        self._watch = RequestWatch(self._try_failed)
        self._sends: dict[RecordKey, Send] = {}
        self._refusals: dict[RecordKey, str] = {}
        config: dict[str, Any] = {
            **client_config(bootstrap_servers, settings),
            "acks": "all",
            "enable_idempotence": True,
            "request_timeout_ms": settings.attempt_timeout_ms,
            "delivery_timeout_ms": _NEVER_MS,
            "retry_backoff_ms": 50,
            **connect_timeouts(settings.min_connect_timeout_ms, self._watch.client),
            **settings.kafka_options,
        }
        largest = largest_record_bytes(bootstrap_servers, settings)
        if largest is not None and settings.compression is None:
            config["max_request_size"] = min(config["max_request_size"], largest)
        self._producer = KafkaProducer(**config)
        try:
            self._partitions = self._count_partitions(settings)
        except BaseException:
            self.end()
            raise

    def hand_over(self, send: Send) -> bool:
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
            _log.info("producer_generation_ended", error=repr(error))
            return False
        future.add_both(self._settled, key, send)
        return True

    def end(self) -> None:
        abandon_soon(self._producer)

    def _count_partitions(self, settings: ProducerSettings) -> int:
        """Kafka's client asks for no longer than `max_block_ms`, which is short because `send` waits as long for room."""
        deadline_s = time.monotonic() + settings.min_connect_timeout_ms / 1_000
        while True:
            try:
                return len(self._producer.partitions_for(self._topic))
            except KafkaTimeoutError:
                if time.monotonic() >= deadline_s:
                    raise

    # --- on the network thread of the producer --------------------------------------------------------------------------------

    def _settled(self, key: RecordKey, send: Send, outcome: Any) -> None:
        if not isinstance(outcome, BaseException):
            self._answered(key, send, "", (outcome.partition, outcome.offset))
            return
        answered = partial(self._answered, key, send, f"Kafka's client gave it up ({type(outcome).__name__}: {outcome})")
        # Another record may have ended Kafka's client while this one was on the wire: its own answer still comes.
        if key in self._refusals or not self._watch.follow(key, answered):
            answered(None)

    def _answered(self, key: RecordKey, send: Send, error: str, place: tuple[int, int] | None) -> None:
        """place: partition and offset in the log; None = it is not there, as far as is known, and `error` says why."""
        if self._sends.get(key) is send:  # and not the same message, sent again by the caller
            del self._sends[key]
        refusal = self._refusals.pop(key, None)
        if place is not None:
            self._post(lambda loop, now: loop.confirmed(send, *place, now))
        else:
            reason, permanent = refusal or error, refusal is not None
            self._post(lambda loop, now: loop.given_up(send, reason, permanent=permanent, now_ms=now))

    def _try_failed(self, failure: FailedTry) -> None:
        if failure.permanent:
            self._refusals[failure.record] = failure.error
        elif (send := self._sends.get(failure.record)) is not None:
            self._post(
                lambda loop, now: loop.try_failed(
                    send, failure.cause, failure.error, began_ms=failure.began_ms, answered=failure.answered, now_ms=now
                )
            )


class GenerationOpener:
    """Opens a generation whenever one is wanted, in a thread, until it succeeds; what comes of it is posted.

    before_first: awaited once between opening and reporting the first one (the throttle table must be known).
    """

    def __init__(
        self,
        bootstrap_servers: str,
        settings: ProducerSettings,
        *,
        post: Callable[[Report], None],
        before_first: Callable[[], None],
    ) -> None:
        self._servers = bootstrap_servers
        self._settings = settings
        self._post = post
        self._before_first: Callable[[], None] | None = before_first
        self._stopping = threading.Event()

    def want(self) -> None:
        """Not again before one has opened."""
        threading.Thread(target=self._open, name="inflight-producer-open", daemon=True).start()

    def close(self) -> None:
        """Returns at once; a generation that opens after all is reported, and the loop ends it."""
        self._stopping.set()

    def _open(self) -> None:
        while not self._stopping.is_set() and not self._try_open():
            self._stopping.wait(_RETRY_OPEN_S)

    def _try_open(self) -> bool:
        try:
            generation = KafkaGeneration(self._servers, self._settings, self._post)
        except Exception as error:  # noqa: BLE001
            # Anything: the sends that wait are told, and the next try may succeed.
            reason = f"{self._servers}: {type(error).__name__}: {error}"
            if isinstance(error, InvalidTopicError):
                reason = f"topic {self._settings.topic} does not exist at {self._servers}; create it with `inflight topics`"
            permanent = isinstance(error, _PERMANENT)
            self._post(lambda loop, now: loop.kafka_unavailable(reason, permanent=permanent, now_ms=now))
            return False
        if self._before_first is not None:
            self._before_first()
            self._before_first = None
        self._post(lambda loop, now: loop.generation_opened(generation, now))
        return True


def largest_record_bytes(bootstrap_servers: str, settings: ProducerSettings) -> int | None:
    """What the brokers take at most in one record; None = they do not say (DescribeConfigs is not allowed).

    Raises InvalidTopicError when there is no such topic; the producer itself would only wait for it.
    """
    config: dict[str, Any] = {
        "bootstrap_servers": bootstrap_servers,
        **connect_timeouts(settings.min_connect_timeout_ms),
        "request_timeout_ms": settings.min_connect_timeout_ms,
        **settings.kafka_options,
    }
    topic = settings.topic
    with contextlib.closing(KafkaAdminClient(**config)) as admin:
        if topic not in admin.list_topics():
            raise InvalidTopicError(topic)
        try:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {_MAX_RECORD: None})
            return int(admin.describe_configs([resource], config_filter="all")["topic"][topic][_MAX_RECORD]["value"])
        except (AuthorizationError, KeyError):
            return None


def abandon_soon(producer: KafkaProducer) -> None:
    """`abandon`, which blocks for seconds, in a thread of its own."""
    threading.Thread(target=abandon, args=(producer,), name="inflight-producer-end", daemon=True).start()


def client_config(bootstrap_servers: str, settings: ProducerSettings) -> Mapping[str, Any]:
    """What every KafkaProducer of ours has in common."""
    return {
        "bootstrap_servers": bootstrap_servers,
        **connect_timeouts(settings.min_connect_timeout_ms),
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
