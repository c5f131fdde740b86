"""Defines the answer to a what-if question."""

import msgspec

from streaming.what_if.comparison import Comparison


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of the job. Times are ms since 1970.

    Attributes:
        since_ms, until_ms, width_ms: The period, and the length of one of its parts.
        batches: Micro-batches in the period.
        records: Records of Kafka that were read.
        is_recorded: The engine had recorded all micro-batches. Otherwise activations were cut by the times of the ledger.
        took_s: Duration of the job.
    """

    comparison: Comparison
    since_ms: int
    until_ms: int
    width_ms: int
    batches: int
    records: int
    is_recorded: bool
    took_s: float
