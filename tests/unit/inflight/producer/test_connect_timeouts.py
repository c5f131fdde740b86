"""kafka-python's time-outs of connections, as it computes them."""

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.net.compat import KafkaNetClient

from inflight.producer.connect_timeouts import connect_timeouts


def test_no_connection_gets_less_than_the_minimum_however_many_have_failed() -> None:
    client = connect_timeouts(20_000)["kafka_client"](bootstrap_servers="127.0.0.1:1")
    manager = client._manager
    given = [manager.socket_connection_setup_timeout_ms(0)]
    for _ in range(100):
        manager.update_backoff(0)
        given.append(manager.socket_connection_setup_timeout_ms(0))
    assert min(given) >= 20_000
    assert max(given) <= 31_000


def test_the_network_client_of_the_caller_is_made() -> None:
    made: list[KafkaNetClient] = []

    class Mine(KafkaNetClient):  # type: ignore[misc]
        def __init__(self, **config: object) -> None:
            super().__init__(**config)
            made.append(self)

    client = connect_timeouts(20_000, Mine)["kafka_client"](bootstrap_servers="127.0.0.1:1")
    assert made == [client]


@pytest.mark.parametrize("kind", [KafkaProducer, KafkaConsumer, KafkaAdminClient])
def test_every_client_of_kafka_python_takes_the_settings(kind: type) -> None:
    with pytest.raises(Exception, match="bootstrap"):
        kind(bootstrap_servers="127.0.0.1:1", **connect_timeouts(100))
