"""Runs a matcher alone (`inflight matcher`), as one coroutine."""

import asyncio
from collections.abc import Callable
from typing import Final

from sinks.health import LoopHealth
from sinks.kafka.host_settings import HostSettings
from sinks.routing.kafka_matcher import KafkaMatcher
from sinks.routing.metrics import MatcherCounters
from sinks.routing.settings import RoutingSettings

_POLL_S: Final = 0.1


async def serve_matcher(
    settings: RoutingSettings,
    host: HostSettings,
    *,
    on_ready: Callable[[], None],
    stop: asyncio.Event,
    counters: MatcherCounters,
    health: LoopHealth,
) -> None:
    """Runs a matcher until `stop` is set. Then it finishes what it has read, commits it and leaves the group.

    Args:
        on_ready: Called once when it routes publications, or would if its group gave it a partition.
        counters, health: Observed from outside.

    Raises:
        KafkaFailed: No broker answers.
        TopicMissing: A topic does not exist.
    """
    matcher = KafkaMatcher(settings, host, counters)
    await asyncio.to_thread(matcher.check)
    matcher.start()
    stopping = asyncio.ensure_future(stop.wait())
    try:
        with health.watching(matcher.missing) as check_health:
            while not stopping.done() and not matcher.has_joined:
                await asyncio.wait((stopping,), timeout=_POLL_S)
            check_health()
            if not stopping.done():
                on_ready()
            await stopping
    finally:
        stopping.cancel()
        await matcher.close(host.stop_timeout_ms / 1_000)
