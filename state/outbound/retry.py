"""Computes waits: for an acknowledgement that may be lost, and after a refusal that asks for a later attempt.

The first is `retry_interval`, one duration or a schedule. It has no jitter, because each message has a timer of its own. The
second is backoff as in RocketMQ and gRPC. Its jitter is computed, so that a re-executed micro-batch waits equally long.
"""

import zlib

from state.settings import BackoffSettings, SessionSettings


def retry_wait_ms(timeouts: int, settings: SessionSettings) -> int:
    """Returns how long to wait for an acknowledgement, counted from the transmission.

    Args:
        timeouts: Number of such waits that have passed without one.
    """
    later = settings.later_retry_intervals_ms
    return later[min(timeouts, len(later)) - 1] if timeouts and later else settings.retry_interval_ms


def backoff_wait_ms(retry: int, settings: BackoffSettings, *, jitter_key: str) -> int:
    """Returns how long to wait before the n-th retry, counted from the start of the attempt that was refused.

    The first wait is exactly `initial`. Then current = min(current × multiplier, max), and the wait is current ± jitter. The
    jitter is added after the cap and never compounds.

    Args:
        retry: 1 = the first.
        jitter_key: Equal keys give equal waits.
    """
    if retry <= 1:
        return settings.initial_ms
    current = float(settings.initial_ms)
    for _ in range(retry - 1):
        current = min(current * settings.multiplier, settings.max_ms)
        if current >= settings.max_ms:
            break
    unit = zlib.crc32(jitter_key.encode()) / 0xFFFF_FFFF  # 0 … 1
    return round(current * (1 + settings.jitter * (2 * unit - 1)))
