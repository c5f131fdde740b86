"""`python -I inflight/local/set_up.py REQUIREMENTS`: installs pinned packages into the Python that runs it (`make setup`).

Needs the standard library and pip only. Two things make it faster than `pip install -r`:
- Some pips work side by side, because each one waits for the network half of its time.
- PySpark comes as a source archive of 430 MB. pip makes a wheel of it, and here that wheel is not compressed.
Byte code is made when a module is imported first, unless the environment forbids Python to write it then.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--require-hashes", "--no-deps")
_QUICK_WHEEL: Final = "--config-settings=--build-option=--compression=stored"
_PIPS_FOR_OTHERS: Final = 2
_REFRESH_S: Final = 0.5
_LINE_EVERY_S: Final = 5.0
"""Where standard error is no terminal."""
_STEP: Final = re.compile(r"\s*(Collecting|Requirement already|Downloading|Building wheel|Installing collected|Successfully)")
_LONGEST: Final = 50
_TAIL_LINES: Final = 30


class Pip:
    """One pip with a share of the packages. lines: what it has printed. found: how many of its packages it has looked at."""

    def __init__(self, name: str, packages: list[str], file: Path, *options: str) -> None:
        file.write_text("\n".join(packages), encoding="utf-8")
        self.name = name
        self.lines: list[str] = []
        self.found = 0
        self._total = len(packages)
        self._step = ""
        self._process = subprocess.Popen(
            [*_PIP, "--progress-bar", "off", *options, "-r", str(file)],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    @property
    def status(self) -> int | None:
        """Returns the exit code, or None while the process runs."""
        return self._process.poll()

    def __str__(self) -> str:
        return f"{self.name}: {self.found} of {self._total}, {self._step or 'starting'}"

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._reading.join()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append(line)
            if step := _STEP.match(line):
                self.found += step[1] in ("Collecting", "Requirement already")
                self._step = line.strip()[:_LONGEST].partition(" (from")[0].partition(":")[0]


def packages_of(requirements: str) -> Iterator[str]:
    """Each package of a requirements file with its hashes, over as many lines as it has."""
    for package in re.split(r"\n(?=\S)", requirements):
        if not package.startswith("#"):
            yield package.strip()


def main(requirements: Path) -> int:
    packages = list(packages_of(requirements.read_text(encoding="utf-8")))
    spark = [package for package in packages if package.startswith("pyspark==")]
    others = [package for package in packages if package not in spark]
    compiling = () if os.environ.get("PYTHONDONTWRITEBYTECODE") else ("--no-compile",)
    started_s = time.monotonic()
    pips: list[Pip] = []
    with tempfile.TemporaryDirectory() as name:
        try:
            pips.append(Pip("PySpark", spark, Path(name) / "spark", _QUICK_WHEEL, *compiling))
            for number in range(_PIPS_FOR_OTHERS):
                share = others[number::_PIPS_FOR_OTHERS]
                pips.append(Pip(f"packages {number + 1}", share, Path(name) / f"others-{number}", *compiling))
            _watch(pips, started_s)
        finally:
            for pip in pips:
                pip.end()
    failed = [pip for pip in pips if pip.status]
    for pip in [pip for pip in failed if (pip.status or 0) > 0] or failed:  # the others were ended with the first one
        sys.stderr.write(f"{pip.name}:\n{''.join(pip.lines[-_TAIL_LINES:])}\n")
    return 1 if failed else 0


def _watch(pips: list[Pip], started_s: float) -> None:
    """Shows how far they are until all have ended or one has failed."""
    is_terminal = sys.stderr.isatty()
    shown_s = -_LINE_EVERY_S
    while True:
        working = [pip for pip in pips if pip.status is None]
        passed_s = time.monotonic() - started_s
        if is_terminal:
            sys.stderr.write(f"\r\x1b[K{passed_s:4.0f} s  {'; '.join(map(str, working))}"[: _columns()])
        elif passed_s - shown_s >= _LINE_EVERY_S:
            shown_s = passed_s
            sys.stderr.write(f"{passed_s:4.0f} s  {'; '.join(map(str, working))}\n")
        sys.stderr.flush()
        if not working or any(pip.status for pip in pips):
            break
        time.sleep(_REFRESH_S)
    sys.stderr.write(f"{chr(13) if is_terminal else ''}packages: {time.monotonic() - started_s:.0f} s\n")


def _columns() -> int:
    return os.get_terminal_size(sys.stderr.fileno()).columns + len("\r\x1b[K")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
