"""The query `archive`: Kafka → Delta tables, each row once (docs/operate/archive.md)."""

from streaming.archive.keeper import ArchiveKeeper
from streaming.archive.query import start_archive

__all__ = ["ArchiveKeeper", "start_archive"]
