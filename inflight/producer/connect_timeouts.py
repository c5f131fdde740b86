"""How long kafka-python gives a connection to be made."""

from collections.abc import Callable
from typing import Any, Final

from kafka.net.compat import KafkaNetClient

_JITTER: Final = 0.2
"""Of kafka-python's own time-out of a connection, upwards and downwards, after a connection that failed."""


def connect_timeouts(min_ms: int, client: Callable[..., KafkaNetClient] = KafkaNetClient) -> dict[str, Any]:
    """Settings for a kafka-python client that gives each of its connections at least `min_ms`.

    The first one, by which it finds the brokers, has a setting (`bootstrap_timeout_ms`). Those after it have none in the client
    but in its network client, which `client` makes.
    """
    setup_ms = round(min_ms / (1 - _JITTER))
    timeouts = {"socket_connection_setup_timeout_ms": setup_ms, "socket_connection_setup_timeout_max_ms": setup_ms}
    return {"bootstrap_timeout_ms": min_ms, "kafka_client": lambda **config: client(**{**config, **timeouts})}
