"""Settings, errors and headers of all clients of librdkafka (the package confluent-kafka).

It is used where a device or a backend waits: gateway, bridge, router, Producer. A record costs it a seventh of what it costs
kafka-python (docs/decisions/0028-librdkafka.md). It has threads of its own; Python learns what they do when it polls.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from sinks.library_log import LibraryLogger
from state.errors import InflightError, UnreadableRecord

METADATA_AGE_MS: Final = 30_000
"""A client asks again what topics there are after this time."""
_ANSWER_MS: Final = 10_000
"""After this time without an answer a client connects again: a broker whose machine is gone says nothing. A fetch waits less."""
_UNKNOWN_OPTION: Final = "No such configuration property"
_CONNECTIONS: Final = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
"""These errors come and go by themselves, with every try to connect."""

_LOG_INTERVAL_S: Final = 60.0
_RECENT_S: Final = 30.0
_LOGIN_REFUSED: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
)
_NO_TOKEN: Final = "Failed to acquire SASL OAUTHBEARER token"  # noqa: S105 - an error's text
_PAUSE_S: Final = 0.1
_log: Final = LibraryLogger(__name__)

_headers: Final = methodcaller("headers")
"""Calls `message.headers()` from C. confluent-kafka returns a list while the error of a name is still set. A call from C finds
that and raises SystemError. A call that the interpreter has specialized, because it was made often, does not check: the error is
raised elsewhere."""


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """Returns the headers of a record that was read.

    Raises UnreadableRecord when a name is not UTF-8, but only in the first call: confluent-kafka caches the headers before it.
    """
    try:
        return _headers(message) or []
    except (SystemError, UnicodeDecodeError) as error:
        raise UnreadableRecord("the name of a header is not UTF-8") from error


def topic_id_of(description: Any) -> str:
    """Returns the id in a TopicDescription as the engine writes it (streaming/topics.py); empty if the brokers have none."""
    found = description.topic_id
    if found is None:
        return ""
    halves = (found.get_most_significant_bits(), found.get_least_significant_bits())
    number = int.from_bytes(b"".join(half.to_bytes(8, signed=half < 0) for half in halves))
    return str(uuid.UUID(int=number)) if number else ""


class KafkaFailed(InflightError):
    """Kafka has not answered, or has refused; the text says which and why."""


class ErrorLogThrottle:
    """Lets one line a minute through for each error: a line that is logged once only is forgotten when it is true weeks later."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._logged_s: dict[int, float] = {}

    def is_due(self, code: int) -> bool:
        now_s = self._monotonic()
        if now_s - self._logged_s.get(code, -_LOG_INTERVAL_S) < _LOG_INTERVAL_S:
            return False
        self._logged_s[code] = now_s
        return True


class ClientErrors:
    """Keeps the newest error of a client's connections; it is the client's `error_cb`. Any thread may ask.

    An error is reported with every new connection: see ErrorLogThrottle.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._newest: KafkaError | None = None
        self._newest_s = 0.0
        self._log_throttle = ErrorLogThrottle(monotonic=monotonic)
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError) -> None:
        code = error.code()
        with self._lock:
            if code != KafkaError._ALL_BROKERS_DOWN:  # follows the one that says why
                self._newest, self._newest_s = error, self._monotonic()
            is_due = self._log_throttle.is_due(code)
        if is_due:
            log = _log.debug if code in _CONNECTIONS else _log.warning
            log("kafka_connection" if code in _CONNECTIONS else "kafka_client", error=error.str())

    @property
    def is_login_refused(self) -> bool:
        """True when the newest error says that the broker let nobody in. A token that could not be had may come later."""
        newest = self._recent()
        return newest is not None and newest.code() in _LOGIN_REFUSED and _NO_TOKEN not in newest.str()

    def failed(self, what: str, error: Exception) -> KafkaFailed:
        """Explains a call that has failed.

        Args:
            error: The error of the call. It says less than the error of the connection before it.
        """
        newest = self._recent()
        return KafkaFailed(f"{what}: {reason_of(error) if newest is None else newest.str()}")

    def _recent(self) -> KafkaError | None:
        with self._lock:
            return self._newest if self._monotonic() - self._newest_s < _RECENT_S else None


def reason_of(error: BaseException) -> object:
    """Returns what a KafkaException carries, which is shorter to read than the exception."""
    return error.args[0].str() if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError) else error


def client_config(
    bootstrap_servers: str, options: Mapping[str, Any], errors: ClientErrors, config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the settings of a client.

    Args:
        options: As `librdkafka_options` makes them, and the user's. They win over `config`.
    """
    return {
        "bootstrap.servers": bootstrap_servers,
        "error_cb": errors,
        "log_level": 0,  # its lines repeat what `error_cb` says
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
        "socket.nagle.disable": True,
        "socket.keepalive.enable": True,
        "socket.timeout.ms": _ANSWER_MS,
        "enable.metrics.push": False,
        **(config or {}),
        **_known(options),
    }


def new_client(kind: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:
    """Makes a client. Raises KafkaFailed when a file or a value is of no use."""
    try:
        return kind(config)
    except KafkaException as error:
        raise KafkaFailed(f"a client of Kafka cannot be made: {reason_of(error)}") from error


def partition_bounds(client: Any, topic: str, number: int) -> tuple[int, int]:
    """Returns the first offset of a partition and its end. One without a leader, as after its creation, is given some seconds.

    Raises KafkaFailed.
    """
    deadline = time.monotonic() + _ANSWER_MS / 1_000
    reason = "no answer"
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            bounds: tuple[int, int] | None = client.get_watermark_offsets(TopicPartition(topic, number), timeout=left_s)
        except KafkaException as error:
            reason = str(reason_of(error))
            time.sleep(_PAUSE_S)
            continue
        if bounds is not None:
            return bounds
    raise KafkaFailed(f"the end of {topic}, partition {number}, is not known: {reason}, within {_ANSWER_MS // 1_000} s")


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Drops options that librdkafka does not know; `kafka.options` may hold options of other clients."""
    return {name: value for name, value in options.items() if callable(value) or _is_known(name)}


@lru_cache(maxsize=256)
def _is_known(name: str) -> bool:
    try:
        Producer({name: "", "log_level": 0})
    except KafkaException as error:
        if _UNKNOWN_OPTION in str(error):
            _log.debug("kafka_option_unknown", option=name)
            return False
    except (TypeError, ValueError):
        pass
    return True
