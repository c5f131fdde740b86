"""Exports what became of messages as spans of OpenTelemetry: `inflight spans` (docs/guides/tracing.md)."""
