"""Names who takes part in a run: the contestants, and variants of Inflight with other settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.contestants.contestant import Contestant
from bench.contestants.inflight import Inflight
from bench.contestants.mosquitto import MosquittoInMemory, MosquittoPersistent
from bench.contestants.rabbitmq import RabbitMq
from bench.contestants.sink import Sink

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
    """A contestant of a run. settings: `key=value` for Inflight, beyond those of all. is_variant: added by --variant."""

    name: str
    title: str
    kind: type[Contestant]
    settings: tuple[str, ...] = ()
    is_variant: bool = False

    def make(self, directory: Path, settings: list[str], *, standby: bool) -> Contestant:
        return self.kind(directory, [*settings, *self.settings], standby=standby)


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
