"""Tells `inflight up` whether and how it serves the console."""

from typing import Final

from streaming.config.settings import Settings
from streaming.settings import OFF

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_STATS_INTERVAL: Final = "15s"


def serves_console(settings: Settings) -> bool:
    """True unless the console is turned off."""
    return settings.console.port != OFF


def shown_metrics(settings: Settings) -> tuple[str, ...]:
    """Returns overrides that make engine and gateway serve on loopback the metrics that the console shows.

    Ports that are configured stay as they are.
    """
    metrics = settings.metrics
    if not serves_console(settings) or metrics.host not in _LOOPBACK:
        return ()
    found = [f"metrics.{name}=0" for name in ("engine_port", "gateway_port") if getattr(metrics, name) == OFF]
    if metrics.engine_port == OFF:
        found.append(f"metrics.census_interval={_STATS_INTERVAL}")
    return tuple(found)
