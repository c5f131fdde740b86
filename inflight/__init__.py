"""Inflight delivers messages between Kafka and MQTT devices, accounts for every one, and loses none.

What a backend imports: `from inflight import Producer, Uplink, Receipts` (docs/guides/backend.md) and `Presence`
(docs/guides/presence.md), without Java and Spark.
What people type is the command `inflight` (inflight/cli).
"""

from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from inflight.presence import *  # noqa: F403
    from inflight.producer import *  # noqa: F403
    from inflight.readers import *  # noqa: F403

    __version__: str

_PUBLIC: Final = ("inflight.producer", "inflight.presence", "inflight.readers")
"""The packages whose `__all__` a backend imports from here."""


def __dir__() -> list[str]:
    public = {name for package in map(import_module, _PUBLIC) for name in package.__all__}
    return sorted({"__version__", *public, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    # At first use: the command imports this package too, and `inflight --help` does not wait for a Kafka client.
    if name == "__version__":
        return version("inflight")
    if name[0].isupper():
        for package in map(import_module, _PUBLIC):
            if name in package.__all__:
                return getattr(package, name)
    close = get_close_matches(name, __dir__(), n=1) if name[0].isupper() else ()
    hint = f": did you mean {close[0]!r}?" if close else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
