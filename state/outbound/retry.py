"""How long to wait: for an answer that may be lost, and after an answer that says "not now".

The first is `retry_interval`, one duration or a schedule of them, without jitter: each message has a clock of its own. The second
is backoff as RocketMQ and gRPC define it, with a jitter that a re-executed micro-batch repeats exactly.
"""

import zlib

from state.settings import BackoffSettings, SessionSettings


def retry_wait_ms(timeouts: int, settings: SessionSettings) -> int:
    """How long to wait for an answer, counted from the transmission, when `timeouts` such waits have been in vain (0 = none)."""
    later = settings.later_retry_intervals_ms
    return later[min(timeouts, len(later)) - 1] if timeouts and later else settings.retry_interval_ms


def backoff_wait_ms(retry: int, settings: BackoffSettings, *, jitter_key: str) -> int:
    """How long to wait before the n-th retry (1 = the first), counted from the start of the attempt that was refused.

    The first wait is exactly `initial`. Then current = min(current × multiplier, max), and the wait is current ± jitter: the
    jitter comes after the cap and never compounds. jitter_key: what makes this wait differ from others; equal keys, equal waits.
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
