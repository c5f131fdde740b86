"""Sends spans to an OpenTelemetry collector by OTLP over HTTP. The packages are those of the extra `inflight[tracing]`."""

from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from inflight.tracing.spans import DELIVER, StationSpan

_NS: Final = 1_000_000
"""Nanoseconds in a millisecond."""
_SERVICE: Final = "service.name"


class OtlpCollector:
    """A collector to which spans are sent.

    Args:
        endpoint: `http://HOST:4318/v1/traces`; None = that of OpenTelemetry's own environment variables.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self._exporter = OTLPSpanExporter(endpoint=endpoint)
        self._resource = Resource.create({_SERVICE: "inflight"})

    def accepts(self, spans: Sequence[StationSpan]) -> bool:
        """Sends the spans, and repeats that for seconds. Returns False if the collector is away or refuses them."""
        return self._exporter.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # of OpenTelemetry

    def _readable(self, span: StationSpan) -> ReadableSpan:
        sampled = TraceFlags(TraceFlags.SAMPLED)
        return ReadableSpan(
            span.name,
            context=SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=sampled),
            parent=SpanContext(span.trace_id, span.parent_id, is_remote=span.name == DELIVER, trace_flags=sampled),
            resource=self._resource,
            attributes=dict(span.attributes),
            kind=SpanKind.CONSUMER if span.name == DELIVER else SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.begin_ms * _NS,
            end_time=span.end_ms * _NS,
        )
