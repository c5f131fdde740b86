"""Translates the security settings for kafka-python."""

from typing import Any

from sinks.kafka.security.settings import KafkaSecurity, SaslMechanism


class Hidden(str):
    """A secret that is not shown by `repr`: kafka-python logs the options of its clients (at DEBUG)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


def python_options(security: KafkaSecurity) -> dict[str, Any]:
    """Returns options for every KafkaProducer, KafkaConsumer and KafkaAdminClient. Raises OSError for an unreadable password."""
    options: dict[str, Any] = {"security_protocol": str(security.security_protocol)}
    if security.has_tls:
        named = {
            "ssl_cafile": security.ssl_cafile,
            "ssl_certfile": security.ssl_certfile,
            "ssl_keyfile": security.ssl_keyfile,
            "ssl_password": Hidden(security.ssl_key_password),
        }
        options |= {name: value for name, value in named.items() if value}
    if security.has_sasl:
        options["sasl_mechanism"] = str(security.sasl_mechanism)
        if security.sasl_mechanism is SaslMechanism.OAUTHBEARER:
            # kafka-python, which whoever reads the configuration alone can do without.
            from sinks.kafka.security.python_tokens import PythonTokens

            options["sasl_oauth_token_provider"] = PythonTokens(security)
        else:
            options |= {"sasl_plain_username": security.sasl_username, "sasl_plain_password": Hidden(security.password)}
    return options
