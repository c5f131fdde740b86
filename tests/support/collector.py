"""An OpenTelemetry collector that keeps what it gets: OTLP over HTTP, decoded from its protobuf."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class KeepingCollector:
    """spans: all that came, of protobuf's Span. refuses: how many requests are answered by 400 first."""

    def __init__(self, *, refuses: int = 0) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self._refuses = refuses
        keeper = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(keeper._take(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def of_trace(self, trace_id: str) -> list[Any]:
        return [span for span in list(self.spans) if span.trace_id.hex() == trace_id]

    def _take(self, body: bytes) -> int:
        if self._refuses:
            self._refuses -= 1
            return 400
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {each.value.string_value for each in resource.resource.attributes if each.key == "service.name"}
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return 200

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
