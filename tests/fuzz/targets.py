"""Everything that is fuzzed."""

from typing import Final

from tests.fuzz.edges import ProxyHeaders, WebSockets
from tests.fuzz.logins import Certificates, JsonWebTokens
from tests.fuzz.packets import Packets
from tests.fuzz.records import Commands, Events, Messages, OtherTopics
from tests.fuzz.target import Target

TARGETS: Final[tuple[type[Target], ...]] = (
    Packets,
    Messages,
    Events,
    Commands,
    OtherTopics,
    JsonWebTokens,
    Certificates,
    ProxyHeaders,
    WebSockets,
)
