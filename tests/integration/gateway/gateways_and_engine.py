"""Runs a Kafka, `inflight engine` and `inflight gateway` as an operator does, for tests that restart gateways properly."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from inflight.local.child_process import free_port
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import Jars
from streaming.config.settings import load_settings
from streaming.topics import ensure_topics
from tests.support.inflight_process import InflightProcess


class Site:
    """Kafka and an engine; gateways are made of it."""

    def __init__(self, directory: Path, kafka: EmbeddedKafka, *settings: str) -> None:
        self.bootstrap_servers = kafka.bootstrap_servers
        self.data_dir = directory / "data"
        self._directory = directory
        self._settings = [f"kafka.bootstrap_servers={self.bootstrap_servers}", f"engine.data_dir={self.data_dir}", *settings]
        ensure_topics(load_settings(None, self._settings))
        self.engine = InflightProcess(directory, "engine", "engine", settings=self._settings)

    @contextmanager
    def gateways(self, *settings: Sequence[str]) -> Iterator[list[InflightProcess]]:
        """Yields a running gateway for each of the settings."""
        with ExitStack() as stack:
            made = []
            for own in settings:
                port = free_port()
                of_gateway = [*self._settings, f"gateway.port={port}", *own]
                gateway = InflightProcess(self._directory, f"gateway-{port}", "gateway", settings=of_gateway)
                made.append(stack.enter_context(gateway))
            yield made


@contextmanager
def running_site(directory: Path, jars: Jars, *settings: str) -> Iterator[Site]:
    with EmbeddedKafka(directory, jars=jars) as kafka:
        site = Site(directory, kafka, *settings)
        with site.engine:
            yield site
