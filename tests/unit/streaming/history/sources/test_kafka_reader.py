import socket

import pytest

from inflight.local.child_process import free_port
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.history.sources.kafka_reader import check_listening


def settings_of(*servers: str) -> Settings:
    return Settings(kafka={"bootstrap_servers": ",".join(servers)})


def test_a_kafka_that_refuses_connections_is_said_at_once() -> None:
    away = f"127.0.0.1:{free_port()}"
    with pytest.raises(KafkaUnreachable, match=r"Connection refused.*Check kafka\.bootstrap_servers"):
        check_listening(settings_of(away))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        check_listening(settings_of(away, f"127.0.0.1:{listening.getsockname()[1]}"))


def test_a_host_without_an_address_is_said_too() -> None:
    with pytest.raises(KafkaUnreachable, match=r"no-such-host\.invalid:9092: .*Check kafka\.bootstrap_servers"):
        check_listening(settings_of("no-such-host.invalid:9092"))
