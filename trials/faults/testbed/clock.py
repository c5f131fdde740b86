"""A wall clock of one process that jumps (trials/faults/testbed/shifted_clock.c)."""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("shifted_clock.c")
_NS = 1_000_000_000
_SHIFT = struct.Struct("=q")


def compiler() -> str | None:
    """Returns the C compiler that makes the library; None = this machine has none."""
    return shutil.which("cc") or shutil.which("gcc")


class Clock:
    """environment: what the process has to be started with. It reaches everything in the process, librdkafka's threads, too."""

    def __init__(self, file: Path) -> None:
        """Raises MissingCompiler."""
        if (command := compiler()) is None:
            raise MissingCompiler("no C compiler was found (cc, gcc)")
        library = file.with_suffix(".so").with_stem(file.stem.replace(" ", "-"))  # LD_PRELOAD separates by spaces
        subprocess.run([command, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl", "-lpthread"], check=True)
        file.write_bytes(_SHIFT.pack(0))
        with file.open("r+b") as opened:
            self._shift = mmap.mmap(opened.fileno(), _SHIFT.size)
        self.environment = {"FAULTS_CLOCK": str(file), "LD_PRELOAD": str(library)}

    def step(self, seconds: float) -> None:
        """The clock is wrong by so much, from now on."""
        _SHIFT.pack_into(self._shift, 0, round(seconds * _NS))


class MissingCompiler(Exception):
    """The library cannot be made here."""
