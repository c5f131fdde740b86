"""librdkafka, by the package confluent-kafka: what all its clients here have in common.

Gateways and bridges read and append with it, because a record costs it a seventh of what it costs kafka-python
(docs/decisions/0028-librdkafka.md). It has threads of its own; Python hears of what they do when it polls.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import methodcaller
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from state.errors import InflightError, UnreadableRecord

METADATA_AGE_MS: Final = 30_000
"""How often a client asks for what it knows about the topics."""
_ANSWER_MS: Final = 10_000
"""Who has not answered by then is dialled again: a broker whose machine is gone says nothing. Longer than a fetch waits."""
_UNKNOWN_OPTION: Final = "No such configuration property"
_CONNECTIONS: Final = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
"""These come and go by themselves, and as often as a client dials."""

_SPARING_S: Final = 60.0
_RECENT_S: Final = 30.0
_log: Final = structlog.get_logger(__name__)

_headers: Final = methodcaller("headers")
"""`message.headers()` would not do. confluent-kafka returns a list with the error of a name still set; a call from C finds that
and raises SystemError, but one that the interpreter has specialized (it was made often) does not look: the error comes up
elsewhere."""


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """Of a record that was read. Raises UnreadableRecord when a name is not UTF-8, but only for who asks first: confluent-kafka
    remembers those before it, and gives them to whoever asks again."""
    try:
        return _headers(message) or []
    except (SystemError, UnicodeDecodeError) as error:
        raise UnreadableRecord("the name of a header is not UTF-8") from error


class KafkaFailed(InflightError):
    """Kafka has not answered, or has refused; the text says why."""


class Sparing:
    """One line a minute for each error: what is said once only is forgotten when it happens again weeks later."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._said_s: dict[int, float] = {}

    def is_due(self, code: int) -> bool:
        now_s = self._monotonic()
        if now_s - self._said_s.get(code, -_SPARING_S) < _SPARING_S:
            return False
        self._said_s[code] = now_s
        return True


class Failures:
    """What a client says of its connections, given to it as `error_cb`. Any thread may ask for the last one.

    Those that say that nobody may log in come with every new connection: see Sparing.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last = ""
        self._last_s = 0.0
        self._sparing = Sparing(monotonic=monotonic)
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError) -> None:
        code = error.code()
        with self._lock:
            if code != KafkaError._ALL_BROKERS_DOWN:  # follows the one that says why
                self._last, self._last_s = error.str(), self._monotonic()
            is_due = code not in _CONNECTIONS and self._sparing.is_due(code)
        if code in _CONNECTIONS:
            _log.debug("kafka_connection", error=error.str())
        elif is_due:
            _log.warning("kafka_client", error=error.str())

    def failed(self, what: str, error: Exception) -> KafkaFailed:
        """error: of the call that has failed; it says less than what came before it."""
        with self._lock:
            is_recent = bool(self._last) and self._monotonic() - self._last_s < _RECENT_S
            reason = self._last if is_recent else str(reason_of(error))
        return KafkaFailed(f"{what}: {reason}")


def reason_of(error: BaseException) -> object:
    """What a KafkaException carries is shorter to read than itself."""
    return error.args[0].str() if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError) else error


def client_config(
    bootstrap_servers: str, options: Mapping[str, Any], failures: Failures, config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Of every client. config: of this one. options: as `librdkafka_options` makes them, and the user's, which win."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "error_cb": failures,
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


def make(kind: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:
    """A client. Raises KafkaFailed when a file or a value is of no use."""
    try:
        return kind(config)
    except KafkaException as error:
        raise KafkaFailed(f"a client of Kafka cannot be made: {reason_of(error)}") from error


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that only the other clients of Kafka know: they are for all of them."""
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
