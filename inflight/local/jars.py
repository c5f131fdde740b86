"""Resolves the jars of conf/ivy.xml once, with the Ivy inside PySpark, into a cache that later starts only look at.

Steps of a resolution, in this order:
1. take the lock, so that two processes do not resolve at once, and look again whether the other has done it;
2. run Ivy into a temporary directory beside the final one;
3. write the manifest (name and size of each jar);
4. rename the directory. What has its final name is complete.
The directory's name holds a hash of ivy.xml: another ivy.xml is another directory, and the old one can be deleted at any time.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inflight.local.child_process import bound_to_parent
from inflight.local.errors import JarResolutionFailed
from inflight.local.java import find_java
from streaming.config.resources import cache_directory, conf_file

_MANIFEST: Final = "manifest.json"
_LOCAL_FS: Final = "hadoop-bare-naked-local-fs"
_VERSION_IN_NAME: Final = re.compile(r"-\d.*$")
_ABOUT_ARTIFACTS: Final = 85
_TAIL_LINES: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """What stands on which classpath.

    spark: for `spark.jars`, without what PySpark ships itself. kafka: the embedded broker's whole classpath.
    local_fs: BareLocalFileSystem; Spark needs it on `spark.driver.extraClassPath`, before `spark.jars` are added.
    """

    spark: tuple[Path, ...]
    kafka: tuple[Path, ...]
    local_fs: Path


def ensure_jars(progress: bool = True) -> Jars:
    """The jars, resolved now if they are not in the cache; a complete cache costs some `stat` calls and no network.

    progress: show on standard error what is going on. Raises JarResolutionFailed, MissingPrerequisite (no Java).
    """
    ivy_file = conf_file("ivy.xml")
    key = hashlib.sha256(ivy_file.read_bytes()).hexdigest()[:16]
    directory = cache_directory() / "jars" / key
    if not _is_complete(directory):
        with _locked(directory.with_suffix(".lock"), progress=progress):
            if not _is_complete(directory):
                _resolve(ivy_file, directory, progress=progress)
    return _classpaths(directory)


def artifact_name(jar: Path) -> str:
    """`scala-library` of `scala-library-2.13.18.jar`: the file name up to the version."""
    return _VERSION_IN_NAME.sub("", jar.stem)


def pyspark_jars() -> Path:
    """The directory of jars inside PySpark, found without importing PySpark (which costs a second)."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarResolutionFailed("PySpark is not installed in this Python. Install Inflight with `make setup` or pip.")
    return Path(spec.origin).parent / "jars"


def _classpaths(directory: Path) -> Jars:
    shipped = {artifact_name(jar) for jar in pyspark_jars().glob("*.jar")}
    spark = sorted(jar for jar in (directory / "spark").glob("*.jar") if artifact_name(jar) not in shipped)
    return Jars(
        spark=tuple(jar for jar in spark if artifact_name(jar) != _LOCAL_FS),
        kafka=tuple(sorted((directory / "kafka").glob("*.jar"))),
        local_fs=next(jar for jar in spark if artifact_name(jar) == _LOCAL_FS),
    )


def _is_complete(directory: Path) -> bool:
    """True when every jar of the manifest is there with its size; somebody may have tidied up."""
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
                print("another process is resolving the jars, waiting for it", file=sys.stderr)  # noqa: T201
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, also when this process is killed


def _resolve(ivy_file: Path, directory: Path, *, progress: bool) -> None:
    java = find_java()
    for leftover in directory.parent.glob(f"{directory.name}.*/"):  # of a killed process: the lock says that nobody works there
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    try:
        command = [
            str(java.executable), "-cp", str(pyspark_jars() / "*"), "org.apache.ivy.Main",
            "-ivy", str(ivy_file),
            "-retrieve", str(staging / "[conf]" / "[artifact]-[revision](-[classifier]).[ext]"),
        ]  # fmt: skip
        _run_ivy(command, progress=progress)
        jars = sorted(staging.glob("*/*.jar"))
        missing = [name for name in ("spark", "kafka") if not any(jar.parent.name == name for jar in jars)]
        if missing:
            raise JarResolutionFailed(f"Ivy said it was done, but there are no jars for {', '.join(missing)}. Check {ivy_file}.")
        manifest = {str(jar.relative_to(staging)): jar.stat().st_size for jar in jars}
        (staging / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        staging.chmod(0o755)  # mkdtemp's 0700 would hide a shared cache from other users
        shutil.rmtree(directory, ignore_errors=True)  # an incomplete one, or rename would refuse
        staging.rename(directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run_ivy(command: list[str], *, progress: bool) -> None:
    """Runs Ivy and turns its lines into a progress bar. Raises JarResolutionFailed with its last lines."""
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    console = Console(stderr=True, quiet=not progress)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        finding = bar.add_task("looking jars up", total=_ABOUT_ARTIFACTS)
        fetching = bar.add_task("downloading jars", total=_ABOUT_ARTIFACTS)
        if not console.is_terminal:
            console.print("resolving jars (about 100 MB, once, about a minute) …")
        process = subprocess.Popen(
            bound_to_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if process.stdout is None:
            raise AssertionError("stdout is a pipe")
        with process.stdout:
            for line in process.stdout:
                match line.split(maxsplit=1):
                    case ["found", _]:
                        bar.advance(finding)
                    case ["[SUCCESSFUL", _]:
                        bar.advance(fetching)
                    case [_, *_]:
                        tail.append(line.rstrip())
                    case _:
                        pass
        status = process.wait()
        for task in finding, fetching:
            bar.update(task, completed=_ABOUT_ARTIFACTS if status == 0 else None)
    if status != 0:
        lines = "\n".join(f"  {line}" for line in tail)
        raise JarResolutionFailed(
            f"Ivy could not resolve the jars (exit status {status}). Its last lines:\n{lines}\n"
            "Check the network (Maven repositories, proxy settings in JAVA_TOOL_OPTIONS) and run `inflight jars` again."
        )


def kafka_classpath(jars: Jars) -> str:
    """The broker's `-cp`."""
    return os.pathsep.join(str(jar) for jar in jars.kafka)
