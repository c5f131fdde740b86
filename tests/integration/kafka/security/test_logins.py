"""Every way to log in, by the one description in [kafka]: kafka-python's clients and librdkafka's against a real broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import TopicAuthorizationFailedError

from inflight.local.jars import Jars
from sinks.kafka.librdkafka import KafkaFailed
from sinks.kafka.record_producer import RecordProducer
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.topics import check_topics
from tests.integration.gateway.certificates import Authority
from tests.integration.kafka.security.acl_table import Rule
from tests.integration.kafka.security.logins import LOGINS, TOPIC, Secured, broker_for_logins, by_password
from tests.support.kafka_topics import create_topics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[Secured]:
    with broker_for_logins(tmp_path_factory.mktemp("secure"), jars) as both:
        yield both


@pytest.mark.parametrize("login", LOGINS)
def test_clients_of_python_log_in(secured: Secured, tmp_path: Path, login: str) -> None:
    options = Settings(kafka=LOGINS[login](*secured, tmp_path)).kafka.client_options()
    producer = KafkaProducer(**options, acks="all")
    written = producer.send(TOPIC, login.encode(), partition=0).get(30)
    producer.close()
    consumer = KafkaConsumer(**options, group_id=None)
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, written.offset)
    [record] = consumer.poll(timeout_ms=30_000, max_records=1)[partition]
    assert record.value == login.encode()
    consumer.close()
    admin = KafkaAdminClient(**options)
    assert TOPIC in admin.list_topics()
    admin.close()


def record_producer(kafka: dict[str, Any]) -> RecordProducer:
    section = Settings(kafka=kafka).kafka
    return RecordProducer(bootstrap_servers=section.bootstrap_servers, options=section.librdkafka_options(), config={})


@pytest.mark.parametrize("login", LOGINS)
def test_clients_of_librdkafka_log_in(secured: Secured, tmp_path: Path, login: str) -> None:
    producer = record_producer(LOGINS[login](*secured, tmp_path))
    try:
        assert producer.partition_counts()[TOPIC] == 1
        answers: list[object] = []
        record: dict[str, Any] = {"key": b"", "value": login.encode(), "headers": None}
        producer.send(TOPIC, 0, **record, answer=lambda error, *_: answers.append(error))
        wait_until(lambda: answers, "the record is confirmed")
        assert answers == [None]
    finally:
        producer.abandon()


SCRAM = {"security_protocol": "SASL_SSL", "sasl_username": "scram-512"}
TOKENS = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_username": "token"}
WRONG: dict[str, dict[str, str]] = {
    "password": SCRAM | {"sasl_password": "hunter3"},
    "user": SCRAM | {"sasl_username": "nobody", "sasl_password": "hunter3"},
    "client secret": TOKENS | {"sasl_password": "hunter3", "sasl_token_url": "TOKENS"},
    "certificate": {"security_protocol": "SSL"},
}

FOR_EVER_MS = 3_600_000
WAITED_MS = {"password": FOR_EVER_MS, "user": FOR_EVER_MS, "client secret": 5_000, "certificate": 5_000}
"""A login that the broker refuses ends the wait at once. A token may come later, and a broker may recover."""


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_login_is_refused_and_its_secret_not_logged(
    secured: Secured, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker, tokens = secured
    keys = {name: tokens.url if value == "TOKENS" else value for name, value in WRONG[what].items()}
    with (
        caplog.at_level("DEBUG"),
        pytest.raises(KafkaUnreachable, match=r"the login and the certificates in \[kafka\]") as caught,
    ):
        check_topics(Settings(kafka=broker.section(**keys) | {"options": {"bootstrap.timeout.ms": WAITED_MS[what]}}))
    assert "hunter3" not in str(caught.value) + caplog.text
    assert what not in ("password", "user") or "refuses the login: SaslAuthenticationFailedError" in str(caught.value)


def ask_for_topics(kafka: dict[str, Any]) -> None:
    producer = record_producer(kafka)
    try:
        producer.partition_counts()
    finally:
        producer.abandon()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("password", "[Aa]uthentication failed"),
        ("user", "[Aa]uthentication failed"),
        ("client secret", "OAuth token not set"),
        ("certificate", "certificate"),
    ],
)
def test_a_wrong_login_of_librdkafka_is_named_and_its_secret_not_logged(
    secured: Secured, what: str, why: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.kafka.record_producer._CONNECT_S", 5.0)
    broker, tokens = secured
    keys = {name: tokens.url if value == "TOKENS" else value for name, value in WRONG[what].items()}
    section = broker.section(**keys)
    with structlog.testing.capture_logs() as logs, pytest.raises(KafkaFailed, match=why) as caught:
        ask_for_topics(section)
    said = str(caught.value) + str(logs) + "".join(capfd.readouterr())
    assert "hunter3" not in said
    assert what != "client secret" or "gave no token: HTTP status 401" in said


def test_a_broker_of_another_authority_is_not_talked_to(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    kafka = by_password("plain", "PLAIN")(*secured, tmp_path) | {"ssl_cafile": str(other.file)}
    with pytest.raises(KafkaUnreachable, match="certificate verify failed"):
        check_topics(Settings(kafka=kafka | {"options": {"bootstrap.timeout.ms": FOR_EVER_MS}}))


def test_a_user_who_is_logged_in_may_do_no_more_than_its_acls(secured: Secured, tmp_path: Path) -> None:
    broker, _ = secured
    create_topics(broker.bootstrap_servers, "forbidden")
    producer = KafkaProducer(**Settings(kafka=by_password("plain", "PLAIN")(*secured, tmp_path)).kafka.client_options())
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("forbidden", b"", partition=0).get(30)
    assert Rule(principal="plain", resource="topic", name="forbidden", operation="Describe") in broker.refused()
    producer.close()
