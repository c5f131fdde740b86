"""Every way to log in that [kafka] has, and a broker that takes all of them. Each user may write to one topic, and read it,
and belong to one group."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from inflight.local.jars import Jars
from tests.integration.kafka.security.acl_table import Rule
from tests.integration.kafka.security.secure_kafka import SecureKafka, password_of, secure_kafka
from tests.support.kafka_topics import create_topics
from tests.support.token_endpoint import TokenEndpoint

TOPIC: Final = "logins"
GROUP: Final = "logins-group"
Secured: TypeAlias = tuple[SecureKafka, TokenEndpoint]
Section: TypeAlias = Callable[[SecureKafka, TokenEndpoint, Path], dict[str, Any]]
_USERS: Final = ("scram-256", "scram-512", "plain", "token", "filed", "device")


@contextmanager
def broker_for_logins(directory: Path, jars: Jars) -> Iterator[Secured]:
    with secure_kafka(directory, jars) as (broker, tokens):
        create_topics(broker.bootstrap_servers, TOPIC)
        for name in _USERS[:2]:
            broker.add_user(name)
        broker.allow(
            Rule(principal=name, resource=resource, name=named, operation=what)
            for name in _USERS
            for resource, named, what in (("topic", TOPIC, "Read"), ("topic", TOPIC, "Write"), ("group", GROUP, "Read"))
        )
        yield broker, tokens


def by_password(name: str, mechanism: str) -> Section:
    keys = {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, "sasl_username": name}
    return lambda broker, *_: broker.section(**keys, sasl_password=password_of(name))


def by_endpoint(broker: SecureKafka, tokens: TokenEndpoint, _: Path) -> dict[str, Any]:
    keys = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_token_url": tokens.url}
    return broker.section(**keys, sasl_username="token", sasl_password=tokens.secret)


def by_token_file(broker: SecureKafka, tokens: TokenEndpoint, directory: Path) -> dict[str, Any]:
    file = directory / "token"
    file.write_text(tokens.token("filed"))
    return broker.section(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_token_file=str(file))


def by_certificate(broker: SecureKafka, *_: object) -> dict[str, Any]:
    return broker.section(security_protocol="SSL", ssl_certfile=str(broker.authority.client("device")))


LOGINS = {
    "PLAIN": by_password("plain", "PLAIN"),
    "SCRAM-SHA-256": by_password("scram-256", "SCRAM-SHA-256"),
    "SCRAM-SHA-512": by_password("scram-512", "SCRAM-SHA-512"),
    "OAUTHBEARER with an endpoint": by_endpoint,
    "OAUTHBEARER with a file": by_token_file,
    "a client certificate": by_certificate,
}
