"""A wall clock of one Python process that jumps (trials/faults/testbed/stepped/sitecustomize.py)."""

import os
from pathlib import Path

_FOLDER = Path(__file__).parent / "stepped"


class Clock:
    """environment: what the process has to be started with."""

    def __init__(self, file: Path) -> None:
        self._file = file
        path = os.pathsep.join(filter(None, (str(_FOLDER), os.environ.get("PYTHONPATH"))))
        self.environment = {"FAULTS_CLOCK": str(file), "PYTHONPATH": path}
        self.step(0.0)

    def step(self, seconds: float) -> None:
        """The clock is wrong by so much, from the next twentieth of a second on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+.3f}\n", encoding="ascii")
        new.replace(self._file)
