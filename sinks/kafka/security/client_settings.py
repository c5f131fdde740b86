"""The address of Kafka and the login, with the options that follow for each kind of client: the keys of [kafka]."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sinks.kafka.security.java_client import java_options
from sinks.kafka.security.librdkafka_client import librdkafka_options
from sinks.kafka.security.python_client import python_options
from sinks.kafka.security.settings import KafkaSecurity
from state.setting import Setting

Option: TypeAlias = str | bool | int | float


def _check_servers(text: str) -> None:
    for server in text.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) <= 65_535):
            raise ValueError("write host:port, several separated by commas, for example kafka-1:9092,kafka-2:9092")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings(KafkaSecurity):
    """Where Kafka is and how all our clients log in there, Python's and Spark's (docs/operate/security.md)."""

    bootstrap_servers: str = Setting(
        "host:port, several separated by commas; `inflight up` puts its own broker here", check=_check_servers
    ).default("127.0.0.1:9092")
    options: Mapping[str, Option] = Setting(
        'more client options by Kafka\'s names, given to every client, for example "request.timeout.ms" = 30000; gateways and '
        "bridges ignore those that librdkafka does not have"
    ).default_factory(dict, is_shown=False)

    def client_options(self) -> dict[str, Any]:
        """Returns the options of every kafka-python client, `bootstrap_servers` included."""
        options = {"bootstrap_servers": self.bootstrap_servers, **python_options(self)}
        return options | {name.replace(".", "_"): value for name, value in self.options.items()}

    def librdkafka_options(self) -> dict[str, Any]:
        """Returns the options of every client of librdkafka, without the bootstrap servers."""
        return librdkafka_options(self) | dict(self.options)

    def spark_options(self) -> dict[str, str]:
        """Returns the options of Spark's Kafka source and sink, with their prefix `kafka.`, bootstrap servers included."""
        options = {"bootstrap.servers": self.bootstrap_servers, **java_options(self)}
        options |= {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in self.options.items()}
        return {f"kafka.{name}": value for name, value in options.items()}
