"""Chooses the source that a question is put to."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from streaming.archive.tables import LEDGER
from streaming.engine.spark_session import SparkJars
from streaming.history.delta_reader import is_table
from streaming.history.sources.delta import DeltaSource, local_table
from streaming.history.sources.kafka import KafkaSource
from streaming.history.sources.merged import MergedSource
from streaming.history.sources.source import Source, SourceChoice, SourceLimits

if TYPE_CHECKING:
    from streaming.config.settings import Settings


def source_of(
    settings: "Settings",
    choice: SourceChoice,
    limits: SourceLimits,
    *,
    jars: Callable[[], SparkJars],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Source:
    """Returns the chosen source. jars: See DeltaSource. on_progress: See KafkaSource.

    AUTO reads the archive together with the records that are newer than it.
    """
    ledger = local_table(settings.tables_location, LEDGER)
    # Only tables on this machine can be looked for; whether there are others, the configuration says.
    has_archive = settings.archive.enabled if ledger is None else is_table(ledger)
    if choice is SourceChoice.DELTA:
        return DeltaSource(settings, limits, jars)
    if choice is SourceChoice.AUTO and has_archive:
        return MergedSource(settings, limits, jars, on_progress)
    return KafkaSource(settings, limits, on_progress)
