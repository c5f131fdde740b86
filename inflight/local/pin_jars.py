"""`python -m inflight.local.pin_jars FILE`: resolves conf/ivy.xml, writes every jar with its SHA-256 to FILE (`make jar-list`).

This takes a minute, because Ivy asks for the POM of each jar, one after the other.
"""

import hashlib
import subprocess
import sys
import tempfile
from dataclasses import astuple
from pathlib import Path
from typing import Final

from inflight.local.jars import PinnedJar, artifact_name, ivy_command, pyspark_jars
from streaming.config.resources import conf_file

_HEAD: Final = (
    "# Every jar beside those of PySpark: class path, organisation, name, version, SHA-256. Made of ivy.xml by `make jar-list`.\n"
)
_PATTERN: Final = "[conf]/[organisation]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"


def main(file: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        subprocess.run(ivy_command("-ivy", str(conf_file("ivy.xml")), "-retrieve", str(directory / _PATTERN)), check=True)
        jars = [_pinned(path.relative_to(directory), path) for path in directory.glob("*/*/*/*/*.jar")]
    shipped = {artifact_name(jar) for jar in pyspark_jars().glob("*.jar")}
    wanted = sorted(jar for jar in jars if jar.class_path != "spark" or artifact_name(jar.path) not in shipped)
    file.write_text(_HEAD + "".join(f"{' '.join(astuple(jar))}\n" for jar in wanted), encoding="utf-8")


def _pinned(where: Path, path: Path) -> PinnedJar:
    class_path, organisation, module, version, file = where.parts
    jar = PinnedJar(class_path, organisation, module, version, hashlib.sha256(path.read_bytes()).hexdigest())
    if jar.path.name != file:
        raise SystemExit(f"{file} has a classifier or a name of its own, which conf/jars.txt cannot say")
    return jar


if __name__ == "__main__":
    main(Path(sys.argv[1]))
