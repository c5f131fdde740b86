import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Producer
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key
from kafka.errors import KafkaError

from sinks.kafka.librdkafka import ClientErrors, client_config, new_client
from sinks.kafka.security.java_client import java_options
from sinks.kafka.security.librdkafka_client import from_python_names, librdkafka_options
from sinks.kafka.security.python_client import python_options
from sinks.kafka.security.python_tokens import PythonTokens
from sinks.kafka.security.settings import KafkaSecurity, SaslMechanism, SecurityProtocol

SASL: dict[str, Any] = {"security_protocol": SecurityProtocol.SASL_PLAINTEXT, "sasl_username": "ann", "sasl_password": 'a"b\\c'}


def test_without_security_only_the_protocol_is_set() -> None:
    nothing = KafkaSecurity(ssl_cafile="ca.pem", sasl_username="ann", sasl_password="p")
    assert python_options(nothing) == {"security_protocol": "PLAINTEXT"}
    assert librdkafka_options(nothing) == {"security.protocol": "PLAINTEXT"}
    assert java_options(nothing) == {"security.protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        (SaslMechanism.PLAIN, "plain.PlainLoginModule"),
        (SaslMechanism.SCRAM_SHA_256, "scram.ScramLoginModule"),
        (SaslMechanism.SCRAM_SHA_512, "scram.ScramLoginModule"),
    ],
)
def test_user_and_password(mechanism: SaslMechanism, module: str) -> None:
    security = KafkaSecurity(**SASL, sasl_mechanism=mechanism)
    assert python_options(security) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism.value,
        "sasl_plain_username": "ann",
        "sasl_plain_password": 'a"b\\c',
    }
    assert librdkafka_options(security) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism.value,
        "sasl.username": "ann",
        "sasl.password": 'a"b\\c',
    }
    assert java_options(security) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism.value,
        "sasl.jaas.config": f'org.apache.kafka.common.security.{module} required username="ann" password="a\\"b\\\\c";',
    }


def test_the_names_of_kafka_python_are_understood_for_librdkafka() -> None:
    security = KafkaSecurity(**SASL, ssl_cafile="/ca.pem")
    assert from_python_names(python_options(security)) == librdkafka_options(security)
    others = {"client_id": "me", "ssl_check_hostname": False, "log_level": 3, "request.timeout.ms": 7, "error_cb": print}
    assert from_python_names(others) == {
        "client.id": "me",
        "ssl.endpoint.identification.algorithm": "none",
        "log_level": 3,
        "request.timeout.ms": 7,
        "error_cb": print,
    }


def test_the_options_of_python_do_not_show_their_secrets() -> None:
    options = python_options(KafkaSecurity(**SASL | {"security_protocol": SecurityProtocol.SASL_SSL}, ssl_key_password="geheim"))
    assert (options["sasl_plain_password"], options["ssl_password"]) == ('a"b\\c', "geheim")
    assert "b\\" not in repr(options)
    assert "geheim" not in repr(options)


def test_tokens_of_an_endpoint() -> None:
    url = {"sasl_mechanism": SaslMechanism.OAUTHBEARER, "sasl_token_url": "https://login/token"}
    security = KafkaSecurity(**SASL, **url, sasl_token_scope="kafka")
    assert isinstance(python_options(security)["sasl_oauth_token_provider"], PythonTokens)
    java = java_options(security)
    assert java["sasl.oauthbearer.token.endpoint.url"] == "https://login/token"
    assert java["sasl.login.callback.handler.class"].endswith("OAuthBearerLoginCallbackHandler")
    assert java["sasl.jaas.config"].endswith(
        'OAuthBearerLoginModule required clientId="ann" clientSecret="a\\"b\\\\c" scope="kafka";'
    )
    assert "scope" not in java_options(KafkaSecurity(**SASL, **url))["sasl.jaas.config"]


def test_a_token_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    security = KafkaSecurity(
        security_protocol=SecurityProtocol.SASL_SSL, sasl_mechanism=SaslMechanism.OAUTHBEARER, sasl_token_file=str(file)
    )
    provider = python_options(security)["sasl_oauth_token_provider"]
    with pytest.raises(KafkaError, match="has no token"):
        provider.token()
    file.write_text("header.claims.signature\n")
    assert provider.token() == "header.claims.signature"
    for options in librdkafka_options(security), from_python_names(python_options(security)):
        token, until_s = options["oauth_cb"]("")
        assert token == "header.claims.signature"
        assert 30 < until_s - time.time() <= 60, "the file is read again in time"
    java = java_options(security)
    assert java["sasl.oauthbearer.token.endpoint.url"] == file.as_uri()
    assert java["sasl.jaas.config"].endswith("OAuthBearerLoginModule required;")


def certificate(directory: Path, *, password: bytes | None, together: bool) -> KafkaSecurity:
    issued = trustme.CA().issue_cert("ann")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    form = {} if password is None else {"encryption_algorithm": BestAvailableEncryption(password)}
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, **form) if form else issued.private_key_pem.bytes()
    chain = b"".join(one.bytes() for one in issued.cert_chain_pems)
    (directory / "cert.pem").write_bytes(text + chain if together else chain)
    (directory / "key.pem").write_bytes(text)
    return KafkaSecurity(
        security_protocol=SecurityProtocol.SSL,
        ssl_certfile=str(directory / "cert.pem"),
        ssl_keyfile="" if together else str(directory / "key.pem"),
        ssl_key_password=(password or b"").decode(),
    )


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("password", [None, b"geheim"])
def test_a_client_certificate(tmp_path: Path, password: bytes | None, together: bool) -> None:
    """Java gets what it takes, whatever form the key has."""
    security = certificate(tmp_path, password=password, together=together)
    assert list(security.problems()) == []
    python = python_options(security)
    ssl.create_default_context().load_cert_chain(python["ssl_certfile"], python.get("ssl_keyfile"), python.get("ssl_password"))
    producer = new_client(Producer, client_config("x:1", librdkafka_options(security), ClientErrors()))
    del producer
    assert from_python_names(python).items() >= librdkafka_options(security).items()
    java = java_options(security)
    assert java["ssl.keystore.type"] == "PEM"
    assert java["ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----\n")
    assert java["ssl.keystore.certificate.chain"].count("BEGIN CERTIFICATE") == 1
    (tmp_path / "java.pem").write_text(java["ssl.keystore.key"] + java["ssl.keystore.certificate.chain"])
    ssl.create_default_context().load_cert_chain(tmp_path / "java.pem")


def test_a_password_that_the_key_does_not_have_is_no_error(tmp_path: Path) -> None:
    security = replace(certificate(tmp_path, password=None, together=True), ssl_key_password="geheim")
    assert list(security.problems()) == []
    assert "ssl.keystore.key" in java_options(security)


def test_authorities_are_named_by_their_file() -> None:
    security = KafkaSecurity(security_protocol=SecurityProtocol.SSL, ssl_cafile="/ca.pem")
    assert python_options(security)["ssl_cafile"] == "/ca.pem"
    assert librdkafka_options(security)["ssl.ca.location"] == "/ca.pem"
    assert java_options(security) == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }
