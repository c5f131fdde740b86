"""Starts the JVM of this process as PySpark does, but without importing PySpark, which then connects to it (jvm.py).

PySpark imports for a second before it starts a JVM, and the JVM needs two seconds before it is of use. Here both happen at once.

Tried with PySpark 4.2.0, whose `launch_gateway` is the model. It runs `bin/spark-submit` with `_PYSPARK_DRIVER_CONN_INFO_PATH`:
the file to which the JVM writes its port (four bytes) and its secret (length in four bytes, then UTF-8). The JVM ends with its
standard input.
"""

import os
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.02
_LAUNCHER_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""spark-submit runs a JVM for a moment to find out the command of the real one."""


@dataclass(frozen=True, slots=True)
class LaunchedJvm:
    """A JVM of this process.

    Attributes:
        folder: The JVM writes how to connect in it.
    """

    process: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "connection"

    def connection(self) -> tuple[int, str] | None:
        """Waits until the JVM can be used. Returns its port and its secret, or None if it has ended instead."""
        try:
            while self.process.poll() is None and not self.file.is_file():
                time.sleep(_POLL_S)
            if not self.file.is_file():
                return None
            data = self.file.read_bytes()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        port, length = struct.unpack_from("!ii", data)
        return port, data[8 : 8 + length].decode()


_launched: LaunchedJvm | None = None


def under_spark_submit() -> bool:
    """Returns True if spark-submit started this process: then the JVM exists already, with its master and its jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def java_environment() -> dict[str, str]:
    """Returns the environment for a JVM. In another locale than UTF-8 Java cannot open files whose names are not ASCII."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def quoted_java_option(option: str) -> str:
    """Returns one option for a list such as `spark.driver.extraJavaOptions`, whatever characters it has."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def launch_jvm(options: Mapping[str, str], *, stderr: int | None = None) -> None:
    """Starts the JVM if this process has none, and does not wait for it.

    Args:
        options: They become flags, which every user of the machine can read. Secrets must not be among them.
        stderr: A file descriptor for the JVM's standard error; None = ours.
    """
    global _launched
    if _launched is not None:
        return
    os.environ.update(java_environment())  # what PySpark starts gets it too
    folder = Path(tempfile.mkdtemp(prefix="inflight-jvm-"))
    words = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
    environment = {
        "SPARK_LAUNCHER_OPTS": _LAUNCHER_OPTIONS,
        **os.environ,
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "connection"),
    }
    process = subprocess.Popen(
        [_spark_home() / "bin" / "spark-submit", *words, *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))],
        stdin=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        preexec_fn=_ignore_interrupts,
    )
    _launched = LaunchedJvm(process, folder)


def launched_jvm() -> LaunchedJvm | None:
    """Returns the JVM that `launch_jvm` has started."""
    return _launched


def await_jvm_exit(timeout_s: float) -> None:
    """Closes the standard input of the JVM, if there is one, and waits for its exit, at most `timeout_s`. Then kills it.

    The folder stays as long as the JVM may write into it: one that cannot would not look at its standard input, and never end.
    """
    if _launched is None:
        return
    process = _launched.process
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(_launched.folder, ignore_errors=True)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _spark_home() -> Path:
    """Finds Spark where PySpark does."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise AssertionError("PySpark is installed wherever an engine is")
    return Path(spec.origin).parent
