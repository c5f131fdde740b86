"""Runs a broker with TLS, every supported login, and ACLs: every operation that is not allowed is denied.

Its plain listener is for tests, which may do everything there. `refused` and `allowed` are what the authorizer
has written into the log.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    UserScramCredentialUpsertion,
)

from inflight.local.child_process import free_port
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import Jars
from sinks.kafka.security.java_client import java_options
from sinks.kafka.security.settings import KafkaSecurity, SecurityProtocol
from streaming.config.resources import conf_file
from tests.integration.gateway.certificates import Authority
from tests.integration.kafka.security.acl_table import Rule
from tests.support.token_endpoint import TokenEndpoint

PASSWORD: Final = "hunter2-of-"
_SECURITY: Final = "org.apache.kafka.common.security"
_VERDICT: Final = re.compile(
    r"Principal = User:(\S+) is (Denied|Allowed) operation = (\w+) from host .*? on resource = (\w+):LITERAL:(\S*)"
)
_LOGGING: Final = """
logger.authorizer.name = kafka.authorizer.logger
logger.authorizer.level = debug
"""
_ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"

_PROPERTIES: Final = """
listeners={listeners},LOGIN://127.0.0.1:{login},CERTIFICATE://127.0.0.1:{certificate}
advertised.listeners={advertised},LOGIN://127.0.0.1:{login},CERTIFICATE://127.0.0.1:{certificate}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL,CERTIFICATE:SSL
inter.broker.listener.name=PLAINTEXT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
ssl.keystore.type=PEM
ssl.keystore.location={server}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.certificate.ssl.client.auth=required
listener.name.certificate.ssl.principal.mapping.rules=RULE:^.*CN=([^,]+).*$/$1/,DEFAULT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.login.plain.sasl.jaas.config={security}.plain.PlainLoginModule required user_plain="{password}plain";
listener.name.login.scram-sha-256.sasl.jaas.config={security}.scram.ScramLoginModule required;
listener.name.login.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;
listener.name.login.oauthbearer.sasl.jaas.config={security}.oauthbearer.OAuthBearerLoginModule required;
listener.name.login.oauthbearer.sasl.server.callback.handler.class={security}.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.login.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={jwks}
listener.name.login.oauthbearer.sasl.oauthbearer.expected.audience=kafka
"""


class SecureKafka(EmbeddedKafka):
    """login, certificate: bootstrap servers for those who log in by SASL, or by a certificate."""

    def __init__(self, directory: Path, *, jars: Jars, tokens: TokenEndpoint) -> None:
        super().__init__(directory, port=free_port(), jars=jars)
        self.authority = Authority(directory / "certificates")
        self.login, self.certificate = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._jwks = tokens.write_jwks(directory / "jwks.json")

    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)

    def add_user(self, name: str) -> dict[str, Any]:
        """[kafka] of a client that logs in as this user, by SCRAM."""
        admin = self.admin()
        try:
            for mechanism in "SCRAM-SHA-256", "SCRAM-SHA-512":  # Kafka takes a user once in a request
                said = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, mechanism, password_of(name))])
                assert said == {name: None}
        finally:
            admin.close()
        return self.section(security_protocol="SASL_SSL", sasl_username=name)

    def section(self, **keys: str) -> dict[str, Any]:
        servers = self.login if keys["security_protocol"] == "SASL_SSL" else self.certificate
        return {"bootstrap_servers": servers, "ssl_cafile": str(self.authority.file), **keys}

    def allow(self, rules: Iterable[Rule]) -> None:
        """Replaces all ACLs by `rules`."""
        everything = ACLFilter(
            None,
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
        )
        admin = self.admin()
        try:
            admin.delete_acls([everything])
            if acls := [_acl(rule) for rule in rules]:
                assert admin.create_acls(acls)["failed"] == []
        finally:
            admin.close()

    def refused(self) -> set[Rule]:
        """Returns what the broker has denied since its start, for all users."""
        return self._decided("Denied")

    def allowed(self) -> set[Rule]:
        return self._decided("Allowed")

    def _decided(self, wanted: str) -> set[Rule]:
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in self.log_file.parent.glob("kafka.log*"))
        return {
            Rule(principal=user, resource=kind.lower(), name=name, operation=operation.title().replace("_", ""))
            for text in texts
            for user, verdict, operation, kind, name in _VERDICT.findall(text)
            if verdict == wanted
        }

    def _java(self, *options: str) -> list[str]:
        """Returns the JVM's options, with a log configuration that logs allowed operations, too."""
        properties = self.log_file.parent / "log4j2.properties"
        properties.write_text(conf_file("kafka-log4j2.properties").read_text(encoding="utf-8") + _LOGGING, encoding="utf-8")
        option = "-Dlog4j2.configurationFile="
        return [f"{option}{properties.as_uri()}" if word.startswith(option) else word for word in super()._java(*options)]

    def _write_properties(self) -> Path:
        path = super()._write_properties()
        text = path.read_text(encoding="utf-8")
        said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
        keys = java_options(KafkaSecurity(security_protocol=SecurityProtocol.SSL, ssl_certfile=str(self.authority.server())))
        server = self.authority.directory / "broker.pem"
        server.write_text(keys["ssl.keystore.key"] + keys["ssl.keystore.certificate.chain"])
        added = _PROPERTIES.format(
            listeners=said["listeners"],
            advertised=said["advertised.listeners"],
            login=self.login.rpartition(":")[2],
            certificate=self.certificate.rpartition(":")[2],
            server=server,
            authority=self.authority.file,
            jwks=self._jwks.as_uri(),
            security=_SECURITY,
            password=PASSWORD,
        )
        path.write_text(text + added, encoding="utf-8")
        return path


def password_of(name: str) -> str:
    return PASSWORD + name


@contextmanager
def secure_kafka(directory: Path, jars: Jars) -> Iterator[tuple[SecureKafka, TokenEndpoint]]:
    with TokenEndpoint().serving() as tokens:
        broker = SecureKafka(directory, jars=jars, tokens=tokens)
        before = os.environ.get("JDK_JAVA_OPTIONS", "")
        allowed = f"-D{_ALLOWED_URLS}={(directory / 'jwks.json').as_uri()}"
        os.environ["JDK_JAVA_OPTIONS"] = f"{before} {allowed}"
        try:
            broker.start()
        finally:
            os.environ["JDK_JAVA_OPTIONS"] = before
        try:
            yield broker, tokens
        finally:
            broker.stop()


def _acl(rule: Rule) -> ACL:
    kinds = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactionalid": ResourceType.TRANSACTIONAL_ID}
    operation = ACLOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rule.operation).upper()]
    resource = ResourcePattern(kinds[rule.resource], rule.name, ACLResourcePatternType.LITERAL)
    return ACL(f"User:{rule.principal}", "*", operation, ACLPermissionType.ALLOW, resource)
