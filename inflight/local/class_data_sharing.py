"""Class data sharing: later JVMs map from a file what an earlier one has loaded and verified. It saves a third of a start.

`inflight jars` makes the archives, once for each Java and class path: inflight/local/warm_up.py runs Kafka and the engine for a
moment, and each JVM writes at its exit what it has loaded. The first `inflight demo` leaves that to a process in the background.
Every later start names the file; a JVM that it does not fit goes on without it.

Source: JEP 350. The files are in the cache beside the jars, and may be deleted at any time.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
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
    """True in the run that makes the archives: JVMs that this process starts write one at their exit."""
    return _DUMP_TO in os.environ


def has_class_archives(jars: Jars) -> bool:
    return all(_archive(program, jars).is_file() for program in _PROGRAMS)


def make_class_archives_later(log: Path) -> None:
    """Starts `inflight jars --background`, which outlives this process."""
    with log.open("wb") as output:
        subprocess.Popen(
            [sys.executable, "-m", "inflight", "jars", "--background"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def ensure_class_archives(jars: Jars, say: Callable[[str], None]) -> None:
    """Makes the archives if they are not there, which takes half a minute, once. Everything works without them.

    Args:
        say: Told what is done, and what goes wrong.
    """
    if has_class_archives(jars):
        return
    home = jars.local_fs.parent.parent
    with (home / "class-archives.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process runs Kafka and Spark once, so that they start faster from now on; waiting for it …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not has_class_archives(jars):
            for leftover in home.glob("warm-up-*/"):  # of a killed process: the lock says that nobody works there
                shutil.rmtree(leftover, ignore_errors=True)
            _make(jars, home, say)


def _make(jars: Jars, home: Path, say: Callable[[str], None]) -> None:
    say("running Kafka and Spark once, so that they start faster from now on (half a minute) …")
    with tempfile.TemporaryDirectory(dir=home, prefix="warm-up-") as name:
        directory = Path(name)
        try:
            done = subprocess.run(
                bound_to_parent([sys.executable, "-m", "inflight.local.warm_up", str(directory / "data")]),
                env={**os.environ, _DUMP_TO: name},
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
        made = [program for program in _PROGRAMS if (directory / f"{program}.jsa").is_file()]
        for program in made:
            (directory / f"{program}.jsa").rename(_archive(program, jars))
        if len(made) < len(_PROGRAMS):
            words = "\n".join(f"  {line}" for line in done.stderr.splitlines()[-5:])
            say(f"that did not work, so they start as slowly as before; `inflight jars` tries again. The last words:\n{words}")


def _archive(program: Program, jars: Jars) -> Path:
    return jars.local_fs.parent.parent / f"{program}-{_made_from(program, jars)}.jsa"


@functools.cache
def _made_from(program: Program, jars: Jars) -> str:
    """Identifies the JVM and the class path. Java silently ignores an archive of another path, or of jars written anew."""
    # Options of the environment add a line, and what follows "mixed mode". Java ignores an archive that they do not fit.
    build = [line.partition(", mixed mode")[0] for line in find_java().build.splitlines() if "Picked up" not in line]
    class_path = jars.kafka if program == "kafka" else (jars.local_fs, *jars.spark, *sorted(pyspark_jars().glob("*.jar")))
    found = hashlib.sha256("\n".join(build).encode())
    for jar in class_path:
        status = jar.stat()
        found.update(f"{jar}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return found.hexdigest()[:16]
