"""CheckpointFiles in memory."""

from dataclasses import dataclass, field

from streaming.spark_internals.checkpoint_files import LastBatch


@dataclass
class MemoryFiles:
    """found: content by name. last: of Spark's logs. written: the names that `write` was called with."""

    last: LastBatch | None = None
    found: dict[str, bytes] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)

    def last_batch(self) -> LastBatch | None:
        return self.last

    def names(self) -> list[str]:
        return [*self.found, ".9.new"]

    def read(self, name: str) -> bytes:
        return self.found[name]

    def write(self, name: str, data: bytes) -> None:
        self.found[name] = data
        self.written.append(name)

    def delete(self, name: str) -> None:
        del self.found[name]

    def path(self, name: str = "") -> str:
        return f"/checkpoint/{name}"

    def planned(self, batch_id: int, *, committed: bool) -> None:
        self.last = LastBatch(batch_id, committed)
