"""Lists all fuzz targets."""

from typing import Final

from trials.fuzz.edges import ProxyHeaders, WebSockets
from trials.fuzz.logins import Certificates, JsonWebTokens
from trials.fuzz.operators import HalfWrittenFiles, Screens
from trials.fuzz.packets import Packets
from trials.fuzz.records import Commands, Events, Messages, OtherTopics
from trials.fuzz.routed import Publications, Recipients
from trials.fuzz.target import Target

TARGETS: Final[tuple[type[Target], ...]] = (
    Packets,
    Messages,
    Events,
    Commands,
    OtherTopics,
    Publications,
    Recipients,
    JsonWebTokens,
    Certificates,
    ProxyHeaders,
    WebSockets,
    Screens,
    HalfWrittenFiles,
)
