"""Class data sharing: later JVMs map from a file what an earlier one has loaded and verified. It saves a third of a start.

The archives are made once for each Java and PySpark, either by `inflight jars`, which runs Kafka and the engine for a moment
(inflight/local/warm_up.py), or by the first `inflight demo`, which runs them anyway. Each JVM writes at its exit what it has
loaded. Every later start names the file; a JVM that it does not fit goes on without it.

Source: JEP 350. The files are in the cache beside the jars, and may be deleted at any time.
"""

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from inflight.local.child_process import bound_to_parent
from inflight.local.jars import Jars, pyspark_jars
from inflight.local.java import find_java

Program = Literal["spark", "kafka"]

_PROGRAMS: Final[tuple[Program, ...]] = ("spark", "kafka")
_DUMP_TO: Final = "INFLIGHT_DUMP_CLASSES_TO"
_TIMEOUT_S: Final = 240.0
# Java reports on standard output that a file does not fit; our commands print their answers there.
_SILENT: Final = "-Xlog:cds*=off"


def archive_options(program: Program, jars: Jars) -> tuple[str, ...]:
    """JVM options that use the archive of a program, or write it where classes are recorded; none if there is no archive."""
    if directory := os.environ.get(_DUMP_TO):
        return (f"-XX:ArchiveClassesAtExit={directory}/{program}.jsa", _SILENT)
    archive = _archive(program, jars)
    return (f"-XX:SharedArchiveFile={archive}", _SILENT) if archive.is_file() else ()


def records_classes() -> bool:
    """True if JVMs that this process starts write an archive at their exit, which has to be waited for."""
    return _DUMP_TO in os.environ


def has_class_archives(jars: Jars) -> bool:
    return all(_archive(program, jars).is_file() for program in _PROGRAMS)


@contextmanager
def recorded_classes(jars: Jars) -> Iterator[Path]:
    """Keeps as archives what the JVMs write that are started inside, unless an exception ends it.

    Yields a directory for other data, which is deleted at the end.
    """
    home = jars.local_fs.parent.parent
    with tempfile.TemporaryDirectory(dir=home, prefix="warm-up-") as name:
        directory = Path(name)
        os.environ[_DUMP_TO] = name
        try:
            yield directory
        finally:
            del os.environ[_DUMP_TO]
        for program in _PROGRAMS:
            if (directory / f"{program}.jsa").is_file():
                (directory / f"{program}.jsa").rename(_archive(program, jars))


def ensure_class_archives(jars: Jars, say: Callable[[str], None]) -> None:
    """Makes the archives if they are not there, which takes half a minute, once. Everything works without them.

    Args:
        say: Told what is done, and what goes wrong.
    """
    if has_class_archives(jars):
        return
    say("running Kafka and Spark once, so that they start faster from now on (half a minute) …")
    try:
        with recorded_classes(jars) as directory:
            done = subprocess.run(
                bound_to_parent([sys.executable, "-m", "inflight.local.warm_up", str(directory / "data")]),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        say(f"they took longer than {_TIMEOUT_S:.0f} s, so they start as slowly as before; `inflight jars` tries again")
        return
    if not has_class_archives(jars):
        words = "\n".join(f"  {line}" for line in done.stderr.splitlines()[-5:])
        say(f"that did not work, so they start as slowly as before; `inflight jars` tries again. The last words:\n{words}")


def _archive(program: Program, jars: Jars) -> Path:
    return jars.local_fs.parent.parent / f"{program}-{_java()}.jsa"


@functools.cache
def _java() -> str:
    """Identifies the JVM and the class path: an archive is for one of each."""
    # Options of the environment would change what Java says of itself; Java ignores an archive that they do not fit.
    plain = {name: value for name, value in os.environ.items() if not name.endswith("_OPTIONS")}
    version = subprocess.run([find_java().executable, "-version"], env=plain, capture_output=True, timeout=30, check=True).stderr
    return hashlib.sha256(version + bytes(pyspark_jars())).hexdigest()[:16]
