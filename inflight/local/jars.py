"""Fetches the jars of conf/jars.txt once, with the Ivy inside PySpark, into a cache that later starts only check.

conf/jars.txt names every jar with its SHA-256, as requirements.txt does for packages: nothing is resolved here
(inflight/local/pin_jars.py does that).

Steps, in this order:
1. Take the lock, so that two processes do not fetch at once, and check again whether the other one has done it.
2. Run some Ivys side by side into a temporary directory beside the final one. Each fetches a share of the jars.
3. Compare every jar with its SHA-256.
4. Write the manifest (name and size of each jar).
5. Rename the directory. A directory with its final name is complete.
The directory's name holds a hash of conf/jars.txt: another list is another directory, and the old one can be deleted at any time.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inflight.local.child_process import bound_to_parent
from inflight.local.errors import JarsNotFetched
from inflight.local.java import find_java
from streaming.config.resources import cache_directory, conf_file
from streaming.terminal import console, say

CLASS_PATHS: Final = ("spark", "kafka")
_LIST: Final = "jars.txt"
_MANIFEST: Final = "manifest.json"
_LOCAL_FS: Final = "hadoop-bare-naked-local-fs"
_VERSION_IN_NAME: Final = re.compile(r"-\d.*$")
_TAIL_LINES: Final = 15
_IVYS: Final = 4
"""They wait for the network most of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """The jars of each class path.

    Attributes:
        spark: For `spark.jars`, without what PySpark ships itself.
        kafka: The embedded broker's whole classpath.
        local_fs: BareLocalFileSystem; Spark needs it on `spark.driver.extraClassPath`, before `spark.jars` are added.
    """

    spark: tuple[Path, ...]
    kafka: tuple[Path, ...]
    local_fs: Path


@dataclass(frozen=True, slots=True, order=True)
class PinnedJar:
    """A line of conf/jars.txt.

    Attributes:
        class_path: One of CLASS_PATHS.
    """

    class_path: str
    organisation: str
    name: str
    version: str
    sha256: str

    @classmethod
    def parse(cls, line: str) -> Self:
        return cls(*line.split())

    @property
    def path(self) -> Path:
        """Below the cache directory."""
        return Path(self.class_path) / f"{self.name}-{self.version}.jar"


def ensure_jars(progress: bool = True) -> Jars:
    """Returns the jars, fetched now if they are not in the cache; a complete cache costs some `stat` calls and no network.

    Args:
        progress: Show on standard error what is going on.

    Raises:
        JarsNotFetched: A jar cannot be had, or is not the one of the list.
        MissingPrerequisite: There is no Java.
    """
    listed = conf_file(_LIST)
    key = hashlib.sha256(listed.read_bytes()).hexdigest()[:16]
    # Without symbolic links: class archives are for one spelling of the class path (class_data_sharing.py).
    directory = cache_directory().resolve() / "jars" / key
    pinned = read_pinned(listed)
    if not _is_complete(directory):
        with _locked(directory.with_suffix(".lock"), progress=progress):
            if not _is_complete(directory):
                _fetch(pinned, directory, progress=progress)
    return _class_paths(pinned, directory)


def read_pinned(listed: Path) -> tuple[PinnedJar, ...]:
    """Reads a list of pinned jars."""
    lines = listed.read_text(encoding="utf-8").splitlines()
    return tuple(PinnedJar.parse(line) for line in lines if not line.startswith("#"))


def artifact_name(jar: Path) -> str:
    """`scala-library` of `scala-library-2.13.18.jar`: the file name up to the version."""
    return _VERSION_IN_NAME.sub("", jar.stem)


def pyspark_jars() -> Path:
    """The directory of jars inside PySpark, found without importing PySpark (which costs a second)."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsNotFetched("PySpark is not installed in this Python. Install Inflight with `make setup` or pip.")
    return Path(spec.origin).parent / "jars"


def kafka_classpath(jars: Jars) -> str:
    """The broker's `-cp`."""
    return os.pathsep.join(str(jar) for jar in jars.kafka)


def ivy_command(*arguments: str) -> list[str]:
    """A command that runs the Ivy inside PySpark. Raises MissingPrerequisite."""
    ivy = next(pyspark_jars().glob("ivy-*.jar"))
    return [str(find_java().executable), "-XX:TieredStopAtLevel=1", "-cp", str(ivy), "org.apache.ivy.Main", *arguments]


def _class_paths(pinned: Sequence[PinnedJar], directory: Path) -> Jars:
    spark, kafka = ([jar for jar in pinned if jar.class_path == name] for name in CLASS_PATHS)
    return Jars(
        spark=tuple(directory / jar.path for jar in spark if jar.name != _LOCAL_FS),
        kafka=tuple(directory / jar.path for jar in kafka),
        local_fs=next(directory / jar.path for jar in spark if jar.name == _LOCAL_FS),
    )


def _is_complete(directory: Path) -> bool:
    """True if every jar of the manifest is there with its size; somebody may have tidied up."""
    try:
        manifest: dict[str, int] = json.loads((directory / _MANIFEST).read_bytes())
        return all((directory / name).stat().st_size == size for name, size in manifest.items())
    except (OSError, ValueError):
        return False


@contextmanager
def _locked(path: Path, *, progress: bool) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                say("another process is fetching the jars, waiting for it", err=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, even if this process is killed


def _fetch(pinned: Sequence[PinnedJar], directory: Path, *, progress: bool) -> None:
    for leftover in directory.parent.glob(f"{directory.name}.*/"):  # of a killed process: the lock says that nobody works there
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    try:
        settings, pattern = conf_file("ivysettings.xml"), staging / "[conf]" / "[artifact]-[revision].[ext]"
        with tempfile.TemporaryDirectory() as name:
            commands = []
            for number in range(_IVYS):
                ivy_file = Path(name) / f"{number}.xml"
                ivy_file.write_text(_ivy_file(number, pinned[number::_IVYS]), encoding="utf-8")
                commands.append(ivy_command("-settings", str(settings), "-ivy", str(ivy_file), "-retrieve", str(pattern)))
            _run_ivys(commands, len(pinned), progress=progress)
        for jar in pinned:
            _check(jar, staging)
        manifest = {str(jar.path): (staging / jar.path).stat().st_size for jar in pinned}
        (staging / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        staging.chmod(0o755)  # mkdtemp's 0700 would hide a shared cache from other users
        shutil.rmtree(directory, ignore_errors=True)  # an incomplete one, or rename would refuse
        staging.rename(directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _ivy_file(number: int, jars: Sequence[PinnedJar]) -> str:
    """Returns the ivy.xml of one Ivy.

    Args:
        number: Names its module, because Ivy keeps a file for each in its cache.
    """
    configurations = "".join(f'<conf name="{name}"/>' for name in CLASS_PATHS)
    dependencies = "".join(
        f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}"'
        f' conf="{jar.class_path}->default" transitive="false"/>'
        for jar in jars
    )
    return (
        f'<ivy-module version="2.0"><info organisation="inflight" module="jars-{number}"/>'
        f"<configurations>{configurations}</configurations><dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _run_ivys(commands: Sequence[Sequence[str]], total: int, *, progress: bool) -> None:
    """Runs Ivys side by side and turns their lines into a progress bar.

    Raises:
        JarsNotFetched: One of them failed; the text has their last lines.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    out = console(stderr=True, quiet=not progress)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=out, disable=not out.is_terminal) as bar:
        fetching = bar.add_task("fetching jars", total=total)
        if not out.is_terminal:
            out.print(f"fetching {total} jars (70 MB, once) …")
        reading, writing = os.pipe()
        processes = [
            subprocess.Popen(bound_to_parent(command), stdin=subprocess.DEVNULL, stdout=writing, stderr=writing)
            for command in commands
        ]
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if "[SUCCESSFUL" in line:
                    bar.advance(fetching)
                elif " " in line.strip():
                    tail.append(line.rstrip())
        failed = [status for process in processes if (status := process.wait())]
        bar.update(fetching, completed=None if failed else total)
    if failed:
        lines_of_ivy = "\n".join(f"  {line}" for line in tail)
        raise JarsNotFetched(
            f"Ivy could not fetch the jars (exit status {failed[0]}). Its last lines:\n{lines_of_ivy}\n"
            "Check the network (Maven repositories, proxy settings in JAVA_TOOL_OPTIONS) and run `inflight jars` again."
        )


def _check(jar: PinnedJar, directory: Path) -> None:
    try:
        with (directory / jar.path).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise JarsNotFetched(f"Ivy said it was done, but there is no {jar.path}. Check {conf_file(_LIST)}.") from None
    if found != jar.sha256:
        raise JarsNotFetched(
            f"{jar.path} is not the file of {conf_file(_LIST)}: its SHA-256 is {found}. Delete it from Ivy's cache"
            f" (~/.ivy2/cache/{jar.organisation}/{jar.name}) and run `inflight jars` again."
        )
