"""Class data sharing: what a JVM has loaded and verified once, later ones map from a file. A third of what a start costs.

`inflight jars` makes the files, once for each Java and PySpark: inflight/local/warm_up.py runs Kafka and the engine for a
moment, and each JVM writes at its exit what it has loaded. Every later start names the file; a JVM that it does not fit goes on
without it.

Source: JEP 350. The files are in the cache beside the jars, and may be deleted at any time.
"""

import functools
import hashlib
import os
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
# Java says on standard output when a file does not fit, where the answers of our commands go.
_SILENT: Final = "-Xlog:cds*=off"


def archive_options(program: Program, jars: Jars) -> tuple[str, ...]:
    """JVM options that use the archive of a program, or, in a warm-up, write it; none when there is no archive."""
    if directory := os.environ.get(_DUMP_TO):
        return (f"-XX:ArchiveClassesAtExit={directory}/{program}.jsa", _SILENT)
    archive = _archive(program, jars)
    return (f"-XX:SharedArchiveFile={archive}", _SILENT) if archive.is_file() else ()


def ensure_class_archives(jars: Jars, say: Callable[[str], None]) -> None:
    """Makes the archives if they are not there: half a minute, once. What goes wrong is said; everything works without them."""
    if all(_archive(program, jars).is_file() for program in _PROGRAMS):
        return
    say("running Kafka and Spark once, so that they start faster from now on (half a minute) …")
    home = jars.local_fs.parent.parent
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
    return jars.local_fs.parent.parent / f"{program}-{_java()}.jsa"


@functools.cache
def _java() -> str:
    """Identifies the JVM and the class path: an archive is for one of each."""
    # Options of the environment would change what Java says of itself; an archive that they do not fit is left alone by Java.
    plain = {name: value for name, value in os.environ.items() if not name.endswith("_OPTIONS")}
    version = subprocess.run([find_java().executable, "-version"], env=plain, capture_output=True, timeout=30, check=True).stderr
    return hashlib.sha256(version + bytes(pyspark_jars())).hexdigest()[:16]
