"""Which source a question is put to."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from streaming.archive.tables import LEDGER
from streaming.engine.spark_session import SparkJars
from streaming.history.delta_reader import is_table
from streaming.history.sources.bounds import Bounds, Where
from streaming.history.sources.delta import DeltaSource, local_table
from streaming.history.sources.kafka import KafkaSource
from streaming.history.sources.source import Source

if TYPE_CHECKING:
    from streaming.config.settings import Settings


def source_of(
    settings: "Settings",
    where: Where,
    bounds: Bounds,
    *,
    jars: Callable[[], SparkJars],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Source:
    """jars, on_progress: of DeltaSource and KafkaSource."""
    if where is Where.DELTA or (where is Where.AUTO and has_archive(settings)):
        return DeltaSource(settings, bounds, jars)
    return KafkaSource(settings, bounds, on_progress)


def has_archive(settings: "Settings") -> bool:
    """Tables on this machine can be looked for; whether there are others, the configuration says."""
    ledger = local_table(settings.tables_location, LEDGER)
    return settings.archive.enabled if ledger is None else is_table(ledger)
