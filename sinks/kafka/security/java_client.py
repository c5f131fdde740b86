"""Translates the security settings for Kafka's Java clients: Spark's source and sink."""

from pathlib import Path
from typing import Final

from sinks.kafka.security.settings import KafkaSecurity, SaslMechanism

_PACKAGE: Final = "org.apache.kafka.common.security"
_MODULES: Final = {
    SaslMechanism.PLAIN: "plain.PlainLoginModule",
    SaslMechanism.SCRAM_SHA_256: "scram.ScramLoginModule",
    SaslMechanism.SCRAM_SHA_512: "scram.ScramLoginModule",
    SaslMechanism.OAUTHBEARER: "oauthbearer.OAuthBearerLoginModule",
}


def java_options(security: KafkaSecurity) -> dict[str, str]:
    """Returns options without Spark's `kafka.` in front. Raises OSError for an unreadable file, ValueError for a wrong key."""
    options = {"security.protocol": str(security.security_protocol)}
    if security.has_tls:
        if security.ssl_cafile:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ssl_cafile}
        if security.ssl_certfile:
            options |= _key_store(security)
    if security.has_sasl:
        options |= {"sasl.mechanism": str(security.sasl_mechanism), "sasl.jaas.config": _jaas(security)}
        if security.sasl_mechanism is SaslMechanism.OAUTHBEARER:
            options |= {
                "sasl.login.callback.handler.class": f"{_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": security.sasl_token_url
                or Path(security.sasl_token_file).absolute().as_uri(),
            }
    return options


def _key_store(security: KafkaSecurity) -> dict[str, str]:
    """Returns the texts instead of the paths: Java reads only PKCS #8, and has no option for a file with the key alone."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificates

    chain = Path(security.ssl_certfile).read_bytes()
    text = Path(security.ssl_keyfile).read_bytes() if security.ssl_keyfile else chain
    # As OpenSSL does it for Python's clients: a password that the key does not have is no error.
    key = load_pem_private_key(text, security.ssl_key_password.encode() if b"ENCRYPTED" in text else None)
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "".join(
            one.public_bytes(Encoding.PEM).decode("ascii") for one in load_pem_x509_certificates(chain)
        ),
        "ssl.keystore.key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii"),
    }


def _jaas(security: KafkaSecurity) -> str:
    if security.sasl_mechanism is not SaslMechanism.OAUTHBEARER:
        given = {"username": security.sasl_username, "password": security.password}
    elif security.sasl_token_file:
        given = {}
    else:
        given = {"clientId": security.sasl_username, "clientSecret": security.password}
        if security.sasl_token_scope:
            given["scope"] = security.sasl_token_scope
    words = (f"{name}={_quoted(value)}" for name, value in given.items())
    return " ".join((f"{_PACKAGE}.{_MODULES[security.sasl_mechanism]} required", *words)) + ";"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
