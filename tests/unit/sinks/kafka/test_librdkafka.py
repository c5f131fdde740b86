from types import SimpleNamespace
from uuid import UUID

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, Uuid

from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client, topic_id_of


def test_options_of_other_clients_are_left_out() -> None:
    config = client_config("x:1", {"client.id": "me", "bootstrap.timeout.ms": 5, "request.timeout.ms": 7}, ClientErrors())
    assert (config["client.id"], config["request.timeout.ms"], config["bootstrap.servers"]) == ("me", 7, "x:1")
    assert "bootstrap.timeout.ms" not in config


@pytest.mark.parametrize(
    "options", [{"ssl.ca.location": "/no/such/file", "security.protocol": "ssl"}, {"request.timeout.ms": "soon"}]
)
def test_a_value_that_is_of_no_use_is_named_before_anything_starts(options: dict[str, str]) -> None:
    with pytest.raises(KafkaFailed, match=r"a client of Kafka cannot be made: .*(ssl\.ca\.location|request\.timeout\.ms)"):
        new_client(Producer, client_config("x:1", options, ClientErrors()))


def test_a_refused_login_is_logged_once_and_a_lost_connection_is_not() -> None:
    failures = ClientErrors()
    with structlog.testing.capture_logs() as logs:
        for code in (KafkaError._TRANSPORT, KafkaError._AUTHENTICATION, KafkaError._AUTHENTICATION):
            failures(KafkaError(code))
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["kafka_client"]


def test_an_error_that_happens_again_later_is_logged_again() -> None:
    now_s = [5.0]
    failures, denied = ClientErrors(monotonic=lambda: now_s[0]), KafkaError(KafkaError._AUTHENTICATION)
    with structlog.testing.capture_logs() as logs:
        for seconds in (0.0, 59.9, 0.1, 1.0):
            now_s[0] += seconds
            failures(denied)
    assert len(logs) == 2
    now_s[0] += 30
    error = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert denied.str() not in str(failures.failed("no broker answers", error)), "that was another failure"


def test_a_failure_includes_the_clients_last_error() -> None:
    failures, error = ClientErrors(), KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert str(failures.failed("no broker answers", error)) == f"no broker answers: {KafkaError(KafkaError._TIMED_OUT).str()}"
    for code in (KafkaError._AUTHENTICATION, KafkaError._ALL_BROKERS_DOWN):
        failures(KafkaError(code))
    assert str(failures.failed("no broker answers", error)).endswith(KafkaError(KafkaError._AUTHENTICATION).str())


@pytest.mark.parametrize("number", [1, (1 << 63) + 5, (1 << 128) - 2, 0x5A67A32B_8E8C_4B5C_A0B0_4C2F7E5D1234])
def test_the_id_of_a_topic_is_written_as_the_engine_writes_it(number: int) -> None:
    halves = [half - (1 << 64) if half >> 63 else half for half in divmod(number, 1 << 64)]
    assert topic_id_of(SimpleNamespace(topic_id=Uuid(*halves))) == str(UUID(int=number))


def test_brokers_without_topic_ids_give_an_empty_one() -> None:
    assert topic_id_of(SimpleNamespace(topic_id=None)) == topic_id_of(SimpleNamespace(topic_id=Uuid(0, 0))) == ""
