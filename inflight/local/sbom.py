"""Makes the parts of `make sbom` that no tool knows: which packages are the product's, and the jars.

    python -m inflight.local.sbom packages requirements.txt       # prints the lines of the packages that a user gets
    python -m inflight.local.sbom jars FROM TO                    # adds the jars to a bill of materials (CycloneDX, JSON)

The jars are those of conf/jars.txt and those that PySpark ships. A jar of PySpark is named by the Maven coordinates that it
contains; a jar without them by its file name.
"""

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from inflight.local.jars import PinnedJar, pyspark_jars, read_pinned
from streaming.config.resources import conf_file
from streaming.terminal import say

PRODUCT: Final = "inflight"
EXTRAS: Final = frozenset({"engine", "tracing"})
"""The extras that a user installs; `dev` is for this repository."""
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)==")
_FILE: Final = re.compile(r"(.+?)-(\d.*)\.jar")
_COORDINATES: Final = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")


def product_packages(name: str = PRODUCT, extras: Iterable[str] = EXTRAS) -> set[str]:
    """Returns the normalized names of all packages that the product needs on this machine, by their metadata."""
    found: set[str] = set()
    waiting = [(canonicalize_name(name), frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        package, wanted = waiting.pop()
        if (package, wanted) in seen:
            continue
        seen.add((package, wanted))
        found.add(package)
        try:
            needed = map(Requirement, requires(package) or ())
        except PackageNotFoundError:  # for another version of Python, and not installed here
            continue
        for one in needed:
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                waiting.append((canonicalize_name(one.name), frozenset(one.extras)))
    return found - {canonicalize_name(PRODUCT)}


def chosen_lines(lines: Iterable[str], packages: set[str]) -> Iterator[str]:
    """Yields the lines of a pinned requirements file that are of these packages, with the hashes behind them."""
    is_chosen = False
    for line in lines:
        if (found := _PINNED.match(line)) is not None:
            is_chosen = canonicalize_name(found[1]) in packages
        elif line.startswith("#"):
            is_chosen = False
        if is_chosen:
            yield line


def pinned_component(jar: PinnedJar) -> dict[str, Any]:
    """Returns the component of a jar of conf/jars.txt."""
    return _component(jar.organisation, jar.name, jar.version, jar.sha256)


def shipped_component(path: Path) -> dict[str, Any]:
    """Returns the component of a jar that PySpark ships."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with zipfile.ZipFile(path) as archive:
        inside = [name for name in archive.namelist() if _COORDINATES.fullmatch(name)]
        texts = [archive.read(name).decode("utf-8", "replace") for name in inside]
    for text in texts:
        said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if {"groupId", "artifactId", "version"} <= said.keys() and path.name.startswith(said["artifactId"]):
            return _component(said["groupId"], said["artifactId"], said["version"], sha256)
    named = _FILE.fullmatch(path.name)
    name, version = (path.stem, "") if named is None else (named[1], named[2])
    return _component("", name, version, sha256)


def with_jars(bill: dict[str, Any], components: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a bill of materials with further components, each once, in the order of their references."""
    by_reference = {one["bom-ref"]: one for one in (*bill.get("components", ()), *components)}
    return {**bill, "components": [by_reference[name] for name in sorted(by_reference)]}


def _component(group: str, name: str, version: str, sha256: str) -> dict[str, Any]:
    address = f"pkg:maven/{group}/{name}@{version}" if group else f"pkg:generic/{name}@{version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{address}#{sha256[:12]}",
        "name": name,
        "version": version,
        "purl": address,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }
    return {**component, "group": group} if group else component


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["packages", file]:
            with Path(file).open(encoding="utf-8") as lines:
                say("".join(chosen_lines(lines, product_packages())).rstrip("\n"))
        case ["jars", source, target]:
            bill = json.loads(Path(source).read_text(encoding="utf-8"))
            components = [pinned_component(jar) for jar in read_pinned(conf_file("jars.txt"))]
            components += [shipped_component(path) for path in sorted(pyspark_jars().glob("*.jar"))]
            Path(target).write_text(json.dumps(with_jars(bill, components), indent=1) + "\n", encoding="utf-8")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
