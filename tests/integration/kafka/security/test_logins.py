"""Every way to log in, by the one description in [kafka]: Python's clients against a real broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import TopicAuthorizationFailedError

from inflight.local.jars import Jars
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.config.topics import check_topics
from tests.integration.gateway.certificates import Authority
from tests.integration.kafka.security.acl_table import Rule
from tests.integration.kafka.security.logins import LOGINS, TOPIC, Secured, broker_for_logins, by_password
from tests.support.kafka_topics import create_topics

pytestmark = pytest.mark.integration


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


SCRAM = {"security_protocol": "SASL_SSL", "sasl_username": "scram-512"}
TOKENS = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_username": "token"}
WRONG: dict[str, dict[str, str]] = {
    "password": SCRAM | {"sasl_password": "hunter3"},
    "user": SCRAM | {"sasl_username": "nobody", "sasl_password": "hunter3"},
    "client secret": TOKENS | {"sasl_password": "hunter3", "sasl_token_url": "TOKENS"},
    "certificate": {"security_protocol": "SSL"},
}


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
        check_topics(Settings(kafka=broker.section(**keys) | {"options": {"bootstrap.timeout.ms": 1_500}}))
    assert "hunter3" not in str(caught.value) + caplog.text


def test_a_broker_of_another_authority_is_not_talked_to(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    kafka = by_password("plain", "PLAIN")(*secured, tmp_path) | {"ssl_cafile": str(other.file)}
    with pytest.raises(KafkaUnreachable, match="the certificates"):
        check_topics(Settings(kafka=kafka | {"options": {"bootstrap.timeout.ms": 1_500}}))


def test_who_is_logged_in_may_do_no_more_than_its_acls(secured: Secured, tmp_path: Path) -> None:
    broker, _ = secured
    create_topics(broker.bootstrap_servers, "forbidden")
    producer = KafkaProducer(**Settings(kafka=by_password("plain", "PLAIN")(*secured, tmp_path)).kafka.client_options())
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("forbidden", b"", partition=0).get(30)
    assert Rule(principal="plain", resource="topic", name="forbidden", operation="Describe") in broker.refused()
    producer.close()
