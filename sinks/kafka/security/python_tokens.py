"""Gives kafka-python its tokens of OAUTHBEARER; it asks for one at each login."""

from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from sinks.kafka.security.settings import KafkaSecurity
from sinks.kafka.security.tokens import TokenUnavailable, token_source


class NoToken(KafkaError):  # type: ignore[misc]
    """No token could be had; kafka-python connects again later, as after any failed login."""

    retriable = True


class PythonTokens(AbstractTokenProvider):  # type: ignore[misc]
    """A value of the option `sasl_oauth_token_provider`."""

    def __init__(self, security: KafkaSecurity) -> None:
        self._source = token_source(security)

    def token(self) -> str:
        """Raises NoToken."""
        try:
            return self._source.token()
        except TokenUnavailable as error:
            raise NoToken(str(error)) from error
