"""sinks.kafka.failed_requests, on lines as librdkafka 2.16 writes them. With a broker: test_producer_faults.py."""

import pytest

from sinks.kafka.failed_requests import FailedRequest, failed_request, request_log

LINE = "127.0.0.1:9092/1: messages [3]: MessageSet with 4 message(s) (MsgId 17, BaseSeq 16) encountered error: {}"


def test_a_lost_connection_names_the_records_of_the_request() -> None:
    line = LINE.format("Local: Broker transport failure (actions Refresh,MsgPossiblyPersisted)")
    failed = failed_request(line)
    assert failed == FailedRequest(3, range(17, 21), "Local: Broker transport failure", is_lost=True, is_answered=False)


@pytest.mark.parametrize(
    ("error", "actions"),
    [
        ("Not enough in-sync replicas", "Retry,MsgNotPersisted"),
        ("Message(s) written to insufficient number of in-sync replicas", "Retry,MsgPossiblyPersisted"),
    ],
)
def test_a_brokers_answer_that_leads_to_a_retry_is_reported(error: str, actions: str) -> None:
    failed = failed_request(LINE.format(f"Broker: {error} (actions {actions})"))
    assert failed is not None
    assert (failed.error, failed.is_lost, failed.is_answered) == (error, False, True)


@pytest.mark.parametrize(
    "text",
    [
        "Broker: Not leader for partition (actions Refresh,MsgNotPersisted)",
        "Broker: Disk error when trying to access log file on disk (actions Refresh,Retry,MsgNotPersisted)",
        "Broker: Broker received an out of order sequence number (actions Permanent,MsgPossiblyPersisted)",
        "Broker: Message size too large (actions Permanent)",
        "Local: Timed out (actions Retry,MsgPossiblyPersisted)",
        "Local: Retry operation (actions Retry)",
    ],
)
def test_a_failure_that_ends_no_attempt_is_neither_lost_nor_answered(text: str) -> None:
    failed = failed_request(LINE.format(text))
    assert failed is not None
    assert not failed.is_lost
    assert not failed.is_answered


def test_only_lines_about_requests_are_read() -> None:
    found: list[FailedRequest] = []
    logger = request_log(found.append)["logger"]
    text = LINE.format("Local: Broker transport failure (actions Refresh,MsgPossiblyPersisted)")
    logger.log(10, "%s [%s] %s", "FETCH", "rdkafka#producer-1", text)
    logger.log(10, "%s [%s] %s", "MSGSET", "rdkafka#producer-1", "messages [3]: MessageSet with 1 message(s) (MsgId 1) delivered")
    assert not found
    logger.log(10, "%s [%s] %s", "MSGSET", "rdkafka#producer-1", text)
    assert len(found) == 1
