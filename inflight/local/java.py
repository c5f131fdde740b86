"""Finds the Java that Spark and the embedded Kafka need. Java is the one prerequisite that Inflight does not install.

The JRE that can be had from PyPI lacks `jdk.incubator.vector`, which Spark asks for, so it is no way out.
"""

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inflight.local.errors import MissingPrerequisite

MINIMUM_JAVA: Final = 17
_VERSION: Final = re.compile(r'version "(?P<major>\d+)(?:\.(?P<minor>\d+))?')
_VERSION_TIMEOUT_S: Final = 120.0
"""A tenth of a second is enough, unless the machine is very busy."""
_INSTALL: Final = (
    f"Install Java {MINIMUM_JAVA} or newer (Debian, Ubuntu: `sudo apt-get install openjdk-17-jre-headless`; "
    "Fedora: `sudo dnf install java-21-openjdk-headless`; macOS: `brew install openjdk@17`) and try again."
)


@dataclass(frozen=True, slots=True)
class JavaInstallation:
    """A usable Java.

    Attributes:
        executable: Absolute path of `java`.
        version: Its major version.
        build: What `java -version` prints.
    """

    executable: Path
    version: int
    build: str


def find_java() -> JavaInstallation:
    """Returns the Java of $JAVA_HOME, else the first on the PATH, as spark-submit would choose.

    Raises:
        MissingPrerequisite: There is no Java, or it is older than MINIMUM_JAVA; the text says how to install one.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "Java was not found"
        raise MissingPrerequisite(f"{where}. {_INSTALL}")
    return _inspect(found)


@functools.cache
def _inspect(found: str) -> JavaInstallation:
    """Runs `java -version`, once in a process."""
    try:
        answer = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingPrerequisite(f"{found} does not run: {error}. {_INSTALL}") from error
    build = answer.stderr + answer.stdout
    version = parse_version(build)
    if version is None or version < MINIMUM_JAVA:
        raise MissingPrerequisite(f"{found} is Java {version or 'of an unknown version'}, too old. {_INSTALL}")
    return JavaInstallation(executable=Path(found).absolute(), version=version, build=build)


def parse_version(output: str) -> int | None:
    """Returns the major version in what `java -version` prints ("1.8.0" is 8), or None."""
    match = _VERSION.search(output)
    if match is None:
        return None
    major, minor = int(match["major"]), int(match["minor"] or 0)
    return minor if major == 1 else major
