"""Describes how clients of Kafka protect the connection and log in, and checks it: one description for all kinds of clients.

`librdkafka_client`, `python_client` and `java_client` beside this module translate it for each.
"""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from state.setting import Setting

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class SecurityProtocol(StrEnum):
    """As Kafka calls it."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class SaslMechanism(StrEnum):
    """As Kafka calls it."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """How all our clients of Kafka, Python's and Spark's, protect the connection and log in (docs/operate/security.md)."""

    security_protocol: SecurityProtocol = Setting("SSL and SASL_SSL have TLS, SASL_… a login").default(SecurityProtocol.PLAINTEXT)
    ssl_cafile: str = Setting(
        "PEM file of the authorities that may have signed the brokers' certificates; empty = those of the "
        "system, for Spark those of the JVM"
    ).default("")
    ssl_certfile: str = Setting(
        "PEM file of our certificate and its chain, where brokers ask for one (mutual TLS); empty = none"
    ).default("")
    ssl_keyfile: str = Setting("PEM file of its key; empty = it is in ssl_certfile").default("")
    ssl_key_password: str = Setting(
        "password of the key, if it has one; best given as INFLIGHT__KAFKA__SSL_KEY_PASSWORD; never shown", secret=True
    ).default("")
    sasl_mechanism: SaslMechanism = Setting("how to log in").default(SaslMechanism.SCRAM_SHA_512)
    sasl_username: str = Setting("the user; with OAUTHBEARER the client id at the token endpoint").default("")
    sasl_password: str = Setting(
        "the password, with OAUTHBEARER the client secret; best given as INFLIGHT__KAFKA__SASL_PASSWORD; never shown", secret=True
    ).default("")
    sasl_password_file: str = Setting("a file that has the password in its first line, instead of sasl_password").default("")
    sasl_token_url: str = Setting("OAUTHBEARER: the token endpoint (OAuth 2.0, client credentials)").default("")
    sasl_token_scope: str = Setting("OAUTHBEARER: the scope that is asked for; empty = none").default("")
    sasl_token_file: str = Setting(
        "OAUTHBEARER: a file with a token that somebody else renews, read for each login, instead of sasl_token_url"
    ).default("")

    @property
    def has_tls(self) -> bool:
        return self.security_protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self.security_protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @property
    def password(self) -> str:
        """Returns the password. Raises OSError when its file cannot be read."""
        if not self.sasl_password_file:
            return self.sasl_password
        lines = Path(self.sasl_password_file).read_text(encoding="utf-8").splitlines()
        return lines[0] if lines else ""

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yields (field, what is wrong and what to do) for the fields that the protocol uses. Reads the files."""
        if self.has_tls:
            yield from self._tls_problems()
        if not self.has_sasl:
            return
        if self.sasl_mechanism is SaslMechanism.OAUTHBEARER:
            yield from self._token_problems()
            return
        yield from self._unused("sasl_token_url", "sasl_token_scope", "sasl_token_file", only_with="OAUTHBEARER")
        if not self.sasl_username:
            yield "sasl_username", f"is empty: security_protocol = {self.security_protocol} needs it"
            return
        yield from self._password_problems()

    def _tls_problems(self) -> Iterator[tuple[str, str]]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ssl_cafile:
            try:
                context.load_verify_locations(self.ssl_cafile)
            except (OSError, ValueError) as error:
                yield "ssl_cafile", f"{self.ssl_cafile} cannot be used: {_reason(error)}; give a PEM file of certificates"
        if not self.ssl_certfile:
            if self.ssl_keyfile:
                yield "ssl_keyfile", "is the key of no certificate: set ssl_certfile, too"
            return
        try:
            # Always give a password, even an empty one: without it OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile or None, password=self.ssl_key_password)
        except (OSError, ValueError) as error:
            files = f"{self.ssl_certfile} and {self.ssl_keyfile}" if self.ssl_keyfile else self.ssl_certfile
            yield (
                "ssl_certfile",
                f"{files} cannot be used: {_reason(error)}; give PEM files of a certificate and its key, and ssl_key_password if "
                "the key has one",
            )

    def _password_problems(self) -> Iterator[tuple[str, str]]:
        if self.sasl_password and self.sasl_password_file:
            yield "sasl_password_file", "is one password too many: remove sasl_password or sasl_password_file"
            return
        try:
            if not self.password:
                yield "sasl_password", f"is empty: sasl_mechanism = {self.sasl_mechanism} needs it, or sasl_password_file"
        except (OSError, ValueError) as error:
            yield "sasl_password_file", f"{self.sasl_password_file} cannot be read: {_reason(error)}"

    def _token_problems(self) -> Iterator[tuple[str, str]]:
        if self.sasl_token_file:
            unused = "sasl_token_url", "sasl_token_scope", "sasl_username", "sasl_password", "sasl_password_file"
            yield from self._unused(*unused, only_with="a token endpoint, not with sasl_token_file")
            try:
                Path(self.sasl_token_file).read_text(encoding="ascii")
            except (OSError, ValueError) as error:
                yield "sasl_token_file", f"{self.sasl_token_file} cannot be read: {_reason(error)}"
            return
        if not self.sasl_token_url:
            yield "sasl_token_url", "is empty: OAUTHBEARER gets its tokens there, or from sasl_token_file"
            return
        url = urlsplit(self.sasl_token_url)
        if url.scheme != "https" and not (url.scheme == "http" and url.hostname in _LOOPBACK):
            yield "sasl_token_url", "must begin with https://, because the client secret goes there"
        if not self.sasl_username:
            yield "sasl_username", "is empty: it is the client id at the token endpoint"
            return
        yield from self._password_problems()

    def _unused(self, *names: str, only_with: str) -> Iterator[tuple[str, str]]:
        yield from ((name, f"is used only with {only_with}: remove it") for name in names if getattr(self, name))


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
