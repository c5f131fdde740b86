"""What `inflight up` needs to know of the console that it serves beside the others."""

from typing import Final

from streaming.config.sections import OFF
from streaming.config.settings import Settings

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_CENSUS: Final = "15s"


def serves_console(settings: Settings) -> bool:
    """Unless it is turned off."""
    return settings.console.port != OFF


def shown_metrics(settings: Settings) -> tuple[str, ...]:
    """Overrides by which engine and gateway serve on loopback what the console shows of them, where nothing is configured."""
    metrics = settings.metrics
    if not serves_console(settings) or metrics.host not in _LOOPBACK:
        return ()
    found = [f"metrics.{name}=0" for name in ("engine_port", "gateway_port") if getattr(metrics, name) == OFF]
    if metrics.engine_port == OFF:
        found.append(f"metrics.census_interval={_CENSUS}")
    return tuple(found)
