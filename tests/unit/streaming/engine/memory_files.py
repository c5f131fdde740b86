"""CheckpointFiles in memory."""

from dataclasses import dataclass, field

from streaming.spark_internals.checkpoint import CheckpointFiles, PlannedBatch


@dataclass
class MemoryFiles:
    """found: content by name. last: of Spark's logs. written: the names that `write` was called with."""

    last: PlannedBatch | None = None
    found: dict[str, bytes] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)

    def last_batch(self) -> PlannedBatch | None:
        return self.last

    def names(self, folder: str = "") -> list[str]:
        within = [name for name in self.found if name.startswith(f"{folder}/")] if folder else [*self.found]
        return [*(name.removeprefix(f"{folder}/").partition("/")[0] for name in within), ".9.new"]

    def read(self, name: str) -> bytes | None:
        return self.found.get(name)

    decoded = CheckpointFiles.decoded

    def size(self, name: str) -> int | None:
        return None if (data := self.found.get(name)) is None else len(data)

    def write(self, name: str, data: bytes) -> None:
        self.found[name] = data
        self.written.append(name)

    def delete(self, name: str) -> None:
        del self.found[name]

    def path(self, name: str = "") -> str:
        return f"/checkpoint/{name}"

    def within(self, folder: str) -> "MemoryFiles":
        """Returns a copy: what is written to it does not count."""
        here = {name.removeprefix(f"{folder}/"): data for name, data in self.found.items() if name.startswith(f"{folder}/")}
        return MemoryFiles(found=here)

    def planned(self, batch_id: int, *, committed: bool) -> None:
        self.last = PlannedBatch(batch_id, committed)
