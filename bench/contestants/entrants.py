"""Names who takes part in a run: the contestants, and variants of Inflight: other settings, or another version."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.contestants.contestant import Contestant
from bench.contestants.inflight import Inflight
from bench.contestants.mosquitto import MosquittoInMemory, MosquittoPersistent
from bench.contestants.rabbitmq import RabbitMq
from bench.contestants.sink import Sink
from inflight.demo.up import python_of

INFLIGHT = "inflight"
RABBITMQ = "rabbitmq"
CONTESTANTS: Mapping[str, type[Contestant]] = {
    INFLIGHT: Inflight,
    RABBITMQ: RabbitMq,
    "mosquitto-persistent": MosquittoPersistent,
    "mosquitto-memory": MosquittoInMemory,
    "generator": Sink,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contestant of a run.

    settings: `key=value` for Inflight, beyond those of all. is_variant: added by --variant or --checkout. checkout: of another
    version of Inflight.
    """

    name: str
    title: str
    kind: type[Contestant]
    settings: tuple[str, ...] = ()
    is_variant: bool = False
    checkout: Path | None = None

    def make(self, directory: Path, settings: list[str], *, standby: bool) -> Contestant:
        if self.checkout is not None:
            return Inflight(directory, [*settings, *self.settings], standby=standby, checkout=self.checkout)
        return self.kind(directory, [*settings, *self.settings], standby=standby)

    def prepare(self) -> None:
        """Has `inflight jars` prepare quick starts, so that no version starts without what the others have.

        Raises:
            subprocess.CalledProcessError: Its standard error has the reason.
        """
        if issubclass(self.kind, Inflight):
            command = [str(python_of(self.checkout)), "-m", "inflight", "jars"]
            subprocess.run(command, cwd=self.checkout, stdout=subprocess.DEVNULL, check=True)


def contestants(text: str) -> list[Entrant]:
    """Reads names with commas between. Raises ValueError for an unknown one."""
    found = text.split(",")
    if unknown := sorted(set(found) - set(CONTESTANTS)):
        raise ValueError(f"there is no {', '.join(unknown)}; there are {', '.join(CONTESTANTS)}")
    return [Entrant(name=name, title=kind.title, kind=kind) for name, kind in CONTESTANTS.items() if name in found]


def variant(text: str) -> Entrant:
    """Reads NAME:key=value[,key=value]. Raises ValueError."""
    name, _, rest = text.partition(":")
    settings = rest.split(",")
    if not name or name in CONTESTANTS or not all("=" in setting for setting in settings):
        raise ValueError(f"{text!r} is not NAME:key=value[,key=value] with a name of its own; example: eager:engine.lazy_ms=0")
    return Entrant(name=name, title=f"Inflight, {name}", kind=Inflight, settings=tuple(settings), is_variant=True)


def other_version(text: str) -> Entrant:
    """Reads NAME:DIRECTORY, a checkout after `make setup jars`. Raises ValueError."""
    name, _, rest = text.partition(":")
    checkout = Path(rest).absolute()
    if not name or name in CONTESTANTS or not rest:
        raise ValueError(f"{text!r} is not NAME:DIRECTORY with a name of its own; example: before:../before")
    if not python_of(checkout).exists():
        raise ValueError(f"{rest} has no .venv; run `make setup jars` there")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    title = f"Inflight, {name} ({commit})" if commit else f"Inflight, {name}"
    return Entrant(name=name, title=title, kind=Inflight, is_variant=True, checkout=checkout)
