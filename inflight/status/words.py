"""How measurements are put into words, on a terminal and on a page."""

from collections.abc import Mapping

from inflight.status.measurements import ENGINE


def age(seconds: float) -> str:
    """`12 s`, `3 min`, `5.2 h`, `3.0 d`."""
    for unit, length_s, places in ("d", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.{places}f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def says(name: str, values: Mapping[str, float]) -> str:
    """What a process does, by its metrics; empty when they do not tell."""
    if name == ENGINE and "inflight_engine_last_micro_batch_seconds" in values:
        batches = values.get("inflight_engine_micro_batches_total", 0)
        return f"{batches:,.0f} micro-batches, the last one took {values['inflight_engine_last_micro_batch_seconds']:.2f} s"
    if "inflight_gateway_connections" in values:
        sent, fast = (values.get(f"inflight_gateway_{what}publishes_sent_total", 0) for what in ("", "fast_"))
        share = f", {fast / sent:.0%} of them on the fast path" if sent else ""
        return f"{values['inflight_gateway_connections']:,.0f} devices, {sent:,.0f} PUBLISHes sent{share}"
    if "inflight_bridge_devices" in values:
        return f"{values['inflight_bridge_devices']:,.0f} devices"
    return ""
