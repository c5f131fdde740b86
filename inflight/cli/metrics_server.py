"""A process's numbers over HTTP, for Prometheus: prometheus-client's own server, at /metrics, in a thread of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.registry import Collector

from inflight.local.errors import CannotListen
from streaming.config.sections import OFF

_STOP_TIMEOUT_S: Final = 5.0


@contextmanager
def serving_metrics(host: str, port: int, key: str, collector: Collector) -> Iterator[str]:
    """Serves `collector`, and what the process costs (CPU, memory, files), until the end of the block.

    port: -1 = no server, 0 = any free one. key: of that port in [metrics], for the message. Yields a word for the process's
    ready line, ` metrics=HOST:PORT`, or nothing. Raises CannotListen.
    """
    if port == OFF:
        yield ""
        return
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise CannotListen(
            f"cannot serve metrics on {host}:{port}: {error.strerror or error}. "
            f"Choose another metrics.{key} (0 = any free one, -1 = off) or metrics.host, or stop what is listening there."
        ) from error
    try:
        yield f" metrics={host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_STOP_TIMEOUT_S)
