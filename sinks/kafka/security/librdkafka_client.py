"""Security in the words of librdkafka."""

import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from sinks.kafka.security.settings import KafkaSecurity, SaslMechanism

_log: Final = structlog.get_logger(__name__)


def librdkafka_options(security: KafkaSecurity) -> dict[str, Any]:
    """For every client of librdkafka. Raises OSError when the password cannot be read."""
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
    """Asked for a token, and until when it is good, seconds since 1970, again after four fifths of that time."""
    from sinks.kafka.security.tokens import (  # kafka-python, which a look at the configuration can do without
        TokenUnavailable,
        token_provider,
    )

    provider = token_provider(security)

    def token(_configuration: str) -> tuple[str, float]:
        try:
            text, life_s = provider.token_and_life_s()
        except TokenUnavailable as error:  # librdkafka asks again, and says nothing about why
            _log.warning("kafka_token", error=str(error))
            raise
        return text, time.time() + life_s

    return token
