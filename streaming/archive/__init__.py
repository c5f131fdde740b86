"""The query `archive`: Kafka → Delta tables, each row once (docs/archive.md)."""

from streaming.archive.keeper import ArchiveKeeper
from streaming.archive.query import start_archive

__all__ = ["ArchiveKeeper", "start_archive"]
