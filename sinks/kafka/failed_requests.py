"""Reads failed and repeated produce requests from librdkafka's debug log, the only place that names them.

An application hears of a record once, at its end. Why a request failed before that, and which records it had, is in the lines
MSGSET of the debug context `msg`, which come with each request. They are no documented interface: with another wording nothing is
reported, and `tests/integration/kafka/test_producer_faults.py` fails. Written for librdkafka 2.16.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError

_DEBUG_LEVEL: Final = 7
_FAILED: Final = re.compile(
    r"\[(?P<partition>\d+)\]: MessageSet with (?P<count>\d+) message\(s\) \(MsgId (?P<first>\d+), BaseSeq -?\d+\) "
    r"encountered error: (?P<error>.*) \(actions (?P<actions>[\w,]*)\)"
)
_LOST: Final = KafkaError(KafkaError._TRANSPORT).str()
_BROKER: Final = "Broker: "


class FailedRequest(NamedTuple):
    """A produce request that failed. If it is neither lost nor answered, the failure ends no attempt.

    Attributes:
        numbers: Numbers of its records. Those of a partition are numbered from 1, in the order in which the client got them.
        is_lost: True if the connection was lost before the answer came.
        is_answered: True if a broker has answered `error`, and librdkafka repeats the request.
    """

    partition: int
    numbers: range
    error: str
    is_lost: bool
    is_answered: bool


def request_log(on_failed: Callable[[FailedRequest], None]) -> dict[str, Any]:
    """Settings of a client whose failed requests are reported to `on_failed`, by its `poll`."""
    return {"debug": "msg", "log_level": _DEBUG_LEVEL, "logger": _RequestLog(on_failed)}


def failed_request(line: str) -> FailedRequest | None:
    """Reads a line MSGSET. None: no request failed.

    A broker that does not lead the partition any more is followed by the one that does ("Refresh"). A request that is out of
    order after another failure is sent again in order. A time-out is measured by whoever waits.
    """
    if (found := _FAILED.search(line)) is None:
        return None
    error, actions = found["error"], found["actions"].split(",")
    is_answered = error.startswith(_BROKER) and "Retry" in actions and "Refresh" not in actions
    first = int(found["first"])
    numbers = range(first, first + int(found["count"]))
    return FailedRequest(int(found["partition"]), numbers, error.removeprefix(_BROKER), error == _LOST, is_answered)


class _RequestLog:
    """Stands for a logging.Logger: confluent-kafka calls nothing but `log`."""

    def __init__(self, on_failed: Callable[[FailedRequest], None]) -> None:
        self._on_failed = on_failed

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        if facility == "MSGSET" and (failed := failed_request(text)) is not None:
            self._on_failed(failed)
