"""Sends a message within a span, so that its way to the device belongs to the trace (docs/guides/tracing.md).

python examples/traced.py [KAFKA]
"""

import sys

from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import TracerProvider

from inflight import Producer

KAFKA = sys.argv[1] if len(sys.argv) > 1 else None
trace.set_tracer_provider(TracerProvider())

with Producer(KAFKA) as producer, trace.get_tracer("shop").start_as_current_span("switch the lamp on"):
    headers = {}
    inject(headers)  # `traceparent` of the current span
    receipt = producer.deliver("lamp-traced", "commands/switch", b"on", headers=headers).result(timeout_s=120)
    print(receipt.outcome, receipt.traceparent)
