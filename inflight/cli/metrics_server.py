"""Serves a process's metrics over HTTP for Prometheus, and its health, with prometheus-client's server on a thread of its own.

| path | response |
|---|---|
| `/healthz` | 200, or 503: the process has to be restarted |
| `/readyz` | 200, or 503: it should get no work for now |
| any other, usually `/metrics` | the metrics |

The health responses are JSON: `ok`, and `missing`, each with `what` and `action`.
"""

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app, start_http_server
from prometheus_client.registry import Collector

from inflight.local.errors import CannotListen
from sinks.health import Health
from streaming.settings import OFF

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ProbeAddress: TypeAlias = tuple[str, int]
"""Host and port of `serving_metrics`."""

_STOP_TIMEOUT_S: Final = 5.0
_log: Final = structlog.get_logger(__name__)


@contextmanager
def serving_metrics(
    host: str, port: int, key: str, collector: Collector, health: Health, *, may_move: bool = False
) -> Iterator[str]:
    """Serves `collector`, the process's CPU, memory and files, and its health, until the end of the block.

    Args:
        port: -1 = no server, 0 = any free one.
        key: The key of that port in [metrics], for the error message.
        may_move: Takes any free port if this one is in use.

    Yields:
        ` metrics=HOST:PORT` for the process's ready line; empty without a server.

    Raises:
        CannotListen: The port is in use or not allowed.
    """
    if port == OFF:
        yield ""
        return
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        server, thread = _started(host, port, registry, may_move=may_move)
    except OSError as error:
        raise CannotListen(
            f"cannot serve metrics on {host}:{port}: {error.strerror or error}. "
            f"Choose another metrics.{key} (0 = any free one, -1 = off) or metrics.host, or stop what is listening there."
        ) from error
    server.set_app(with_health(make_wsgi_app(registry), health))
    try:
        yield f" metrics={host}:{server.server_port}"
    finally:
        _stop(server, thread)


@contextmanager
def serving_probes(addresses: Sequence[ProbeAddress], health: Health) -> Iterator[None]:
    """Serves health, and the process's CPU, memory and files, for a process that cannot start yet, until the end of the block.

    Args:
        addresses: A port that nobody knows (0), or of which another process makes use, is left out.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    with ExitStack() as serving:
        for host, port in addresses:
            if port <= 0:
                continue
            with suppress(OSError):
                server, thread = start_http_server(port, host, registry)
                serving.callback(_stop, server, thread)
                server.set_app(with_health(make_wsgi_app(registry), health))
        yield


def _stop(server: "WSGIServer", thread: "Thread") -> None:
    server.shutdown()
    server.server_close()
    thread.join(_STOP_TIMEOUT_S)


def _started(host: str, port: int, registry: CollectorRegistry, *, may_move: bool) -> "tuple[WSGIServer, Thread]":
    try:
        return start_http_server(port, host, registry)
    except OSError as error:
        if not may_move or error.errno != errno.EADDRINUSE:
            raise
    server, thread = start_http_server(0, host, registry)
    _log.warning("metrics_port_moved", configured=port, port=server.server_port, reason="another process serves there")
    return server, thread


def with_health(metrics: "WSGIApplication", health: Health) -> "WSGIApplication":
    """Adds the health paths to the metrics application."""
    questions = {"/healthz": health.not_alive, "/readyz": health.not_ready}

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        question = questions.get(environ["PATH_INFO"])
        if question is None:
            return metrics(environ, start_response)
        missing = question()
        start_response("503 Service Unavailable" if missing else "200 OK", [("Content-Type", "application/json")])
        return [msgspec.json.encode({"ok": not missing, "missing": missing}) + b"\n"]

    return answer
