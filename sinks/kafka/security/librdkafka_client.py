"""Translates the security settings for librdkafka."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from sinks.kafka.security.settings import KafkaSecurity, SaslMechanism
from sinks.kafka.security.tokens import TokenUnavailable, token_source
from sinks.library_log import LibraryLogger

_NAMES: Final = {
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",  # nosec B105 - the name of an option
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",  # nosec B105 - the name of an option
}
"""Options of kafka-python whose librdkafka name differs in more than the separator."""

_PROVIDED_LIFE_S: Final = 60.0
"""A token of kafka-python's provider is used for so long: the provider does not say how long it lives."""

_log: Final = LibraryLogger(__name__)


def librdkafka_options(security: KafkaSecurity) -> dict[str, Any]:
    """Returns options for every client of librdkafka. Raises OSError when the password cannot be read."""
    options: dict[str, Any] = {"security.protocol": str(security.security_protocol)}
    if security.has_tls:
        named = {
            "ssl.ca.location": security.ssl_cafile,
            "ssl.certificate.location": security.ssl_certfile,
            "ssl.key.location": security.ssl_keyfile or security.ssl_certfile,
            "ssl.key.password": security.ssl_key_password,
        }
        options |= {name: value for name, value in named.items() if value}
    if security.has_sasl:
        options["sasl.mechanism"] = str(security.sasl_mechanism)
        if security.sasl_mechanism is SaslMechanism.OAUTHBEARER:
            options["oauth_cb"] = _tokens(security)
        else:
            options |= {"sasl.username": security.sasl_username, "sasl.password": security.password}
    return options


def _tokens(security: KafkaSecurity) -> Callable[[str], tuple[str, float]]:
    """Returns a callback that gives a token, and the end of its life in seconds since 1970.

    librdkafka calls it again after four fifths of that time.
    """
    source = token_source(security)

    def token(_configuration: str) -> tuple[str, float]:
        try:
            text, life_s = source.token_and_life_s()
        except TokenUnavailable as error:  # librdkafka asks again, and says nothing about why
            _log.warning("kafka_token", error=str(error))
            raise
        return text, time.time() + life_s

    return token


def from_python_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Translates options that have kafka-python's names; others stay as they are.

    A token provider of kafka-python becomes a callback. A certificate without a key of its own has it in its file.
    """
    translated: dict[str, Any] = {}
    for name, value in options.items():
        if name == "sasl_oauth_token_provider":
            translated["oauth_cb"] = _provided_token(value)
        elif name == "ssl_check_hostname":
            translated["ssl.endpoint.identification.algorithm"] = "https" if value else "none"
        elif name == "log_level" or callable(value):
            translated[name] = value
        else:
            translated[_NAMES.get(name, name.replace("_", "."))] = value
    if "ssl_certfile" in options:
        translated.setdefault("ssl.key.location", options["ssl_certfile"])
    return translated


def _provided_token(provider: Any) -> Callable[[str], tuple[str, float]]:
    def token(_configuration: str) -> tuple[str, float]:
        return provider.token(), time.time() + _PROVIDED_LIFE_S

    return token
