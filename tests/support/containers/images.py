"""Provides the images that the files of Compose name: pulled, or stand-ins that are built here where no registry can be reached.

| image | stand-in |
|---|---|
| the base of conf/Dockerfile | Debian with its own Python, by mmdebstrap |
| apache/kafka | the broker from the jars of conf/jars.txt |
| haproxy, prom/prometheus | Debian's packages |
| grafana/grafana | none: Debian has no Grafana |

A stand-in for the base has this machine's certificates, and pip's and the proxies' settings of the environment. It is for this
machine: do not push it, nor what is built on it.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.containers.container_engine import ROOT, CannotRunContainers, CommandFailed, ContainerEngine

OURS: Final = "inflight:dev"
STAND_INS: Final = Path(__file__).parent / "stand_ins"
LABEL: Final = "inflight.stand-in"
CERTIFICATES: Final = Path("/usr/local/share/ca-certificates")
"""Debian's place for certificates that an administrator has added."""
_DOCKERFILE: Final = ROOT / "conf" / "Dockerfile"
_PASSED_ON: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "http_proxy", "https_proxy", "no_proxy")
_PULLED_WITHIN_S: Final = 600.0
_BUILT_WITHIN_S: Final = 1_800.0


def base_image() -> str:
    """The image that conf/Dockerfile begins with."""
    found = re.search(r"^ARG BASE=(\S+)$", _DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert found is not None
    return found[1]


def images_of(file: Path) -> dict[str, str]:
    """Returns the image of each service of a file of Compose."""
    services: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["services"]
    return {name: service["image"] for name, service in services.items()}


def stand_in_of(image: str) -> str | None:
    """Returns the folder of an image's stand-in below `stand_ins`, or None."""
    name = image.partition(":")[0].rpartition("/")[2]
    return name if (STAND_INS / name / "Dockerfile").is_file() else None


def debian_and_python(image: str) -> tuple[str, str]:
    """Returns the suite of Debian and the package of Python for a tag of the image python, such as 3.11-slim-bookworm."""
    found = re.fullmatch(r"python:(\d+\.\d+)-slim-(\w+)", image)
    if found is None:
        raise CannotRunContainers(f"{image} cannot be pulled, and a stand-in can be made for python:VERSION-slim-SUITE only")
    return found[2], f"python{found[1]}"


def base_command(image: str, *, has_certificates: bool) -> list[str]:
    """Returns the command that writes a stand-in's root file system to standard output, as slim as Debian's slim images."""
    suite, python = debian_and_python(image)
    hooks = [
        'mkdir -p "$1"/usr/share/man/man1',  # Java's package makes links in it
        f'ln -s /usr/bin/{python} "$1"/usr/local/bin/python && ln -s python "$1"/usr/local/bin/python3',
    ]
    if has_certificates:
        hooks += [f"copy-in {CERTIFICATES} {CERTIFICATES.parent}", 'chroot "$1" update-ca-certificates']
    return [
        *("mmdebstrap", "--quiet", "--variant=minbase"),
        *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "locale", "doc")),
        f"--include=ca-certificates,{python},{python}-venv",
        *(f"--customize-hook={hook}" for hook in hooks),
        suite,
        "-",
    ]


def base_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what builds on the stand-in have of this machine's environment."""
    found = {name: environment[name] for name in _PASSED_ON if environment.get(name)}
    return {"PIP_CERT": "/etc/ssl/certs/ca-certificates.crt", **found}


class Images:
    """The images of one engine.

    Attributes:
        base: What our image begins with.
        stand_ins: The names of the images that were built here instead of pulled.
    """

    def __init__(self, engine: ContainerEngine, base: str) -> None:
        self.base = base
        self._engine = engine
        self.stand_ins: set[str] = set()

    def provide_base(self) -> None:
        """Pulls the base of our image, or makes its stand-in. Raises CannotRunContainers, CommandFailed."""
        image = self.base
        if self._was_pulled(image):
            return
        command = base_command(image, has_certificates=any(CERTIFICATES.glob("*.crt")))
        environment = base_environment(os.environ)
        recipe = hashlib.sha256(json.dumps([command, environment]).encode()).hexdigest()[:16]
        self.stand_ins.add(image)
        if self._label(image) == recipe:
            return
        if shutil.which("mmdebstrap") is None:
            raise CannotRunContainers(
                f"{image} cannot be pulled, and mmdebstrap, which makes a stand-in of Debian, is not installed."
            )
        changes = [f"LABEL {LABEL}={recipe}", *(f"ENV {name}={json.dumps(value)}" for name, value in environment.items())]
        importing = ["docker", "import", *(word for change in changes for word in ("--change", change)), "-", image]
        piped = f"{shlex.join(command)} | {shlex.join(importing)}"
        self._engine.run("bash", "-o", "pipefail", "-c", piped, within_s=_BUILT_WITHIN_S)
        try:
            self._engine.docker("run", "--rm", image, "python", "--version")
        except CommandFailed as error:
            raise CannotRunContainers(f"The container engine answers, but starts no container: {error}") from error

    def provide(self, images: Iterable[str]) -> set[str]:
        """Pulls or builds images beside our own, which has to be there. Returns those that cannot be had."""
        missing: set[str] = set()
        for image in sorted(set(images) - {OURS}):
            if self._was_pulled(image):
                continue
            folder = stand_in_of(image)
            if folder is None:
                missing.add(image)
                continue
            self.stand_ins.add(image)
            self._engine.docker(
                *("build", "--quiet", "--tag", image, "--label", f"{LABEL}={folder}", "--build-arg", f"BASE={self.base}"),
                str(STAND_INS / folder),
                within_s=_BUILT_WITHIN_S,
            )
        return missing

    def _was_pulled(self, image: str) -> bool:
        """Pulls an image unless it or its stand-in is there. Returns False if there is only the stand-in, or nothing."""
        label = self._label(image)
        if label is None:
            try:
                self._engine.docker("pull", "--quiet", image, within_s=_PULLED_WITHIN_S)
            except CommandFailed:
                return False
        return not label

    def _label(self, image: str) -> str | None:
        """Returns the recipe of a stand-in, "" for any other image, and None if it is not there."""
        try:
            found = json.loads(self._engine.docker("image", "inspect", "--format", "{{json .Config.Labels}}", image))
        except CommandFailed:
            return None
        return str((found or {}).get(LABEL, ""))
