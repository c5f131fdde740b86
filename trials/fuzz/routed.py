"""Records of routing, changed at random: lists of subscriptions, publications, and recipients of messages."""

import random
from pathlib import Path
from typing import Final, NamedTuple

from sinks.routing.matcher import Matcher, PublicationSource
from sinks.routing.metrics import MatcherCounters
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.settings import RoutingSettings
from state.events import ClientConnected, Subscribed
from state.model import QoS, Routing, Subscription
from state.records.events import encode_event
from state.records.record import Header
from state.records.routing import RECIPIENT_PREFIX, encode_routing
from state.records.subscriptions import ENDED, SubscriptionList, encode_subscriptions
from streaming.engine.operator.cells import EVENTS, MESSAGES
from trials.fuzz.mutations import mutated
from trials.fuzz.records import fuzzed_headers
from trials.fuzz.sessions import FuzzedSession
from trials.fuzz.target import Target

_FILTERS: Final = ("a/b", "a/+", "#", "$share/g/a/#", "$SYS/#")
_SUBSCRIPTIONS: Final = tuple(Subscription(topic_filter=one, qos=QoS.EXACTLY_ONCE, identifier=7) for one in _FILTERS)
_LIST: Final = encode_subscriptions(SubscriptionList(connection_id=1, version=1, subscriptions=_SUBSCRIPTIONS, wanted=("#",)))
_ROUTING: Final = encode_routing(
    Routing(source=8, mark=1, connection_id=1, version=1, qos=QoS.AT_LEAST_ONCE, subscription_ids=(7,), share="$share/g/a/#")
)
_OF_UPLINK: Final = (("client-id", b"c"), ("inflight-id", b"c:1:1"), ("message-expiry", b"60"), ("micro-batch", b"1700000000000"))


class _Record(NamedTuple):
    """A record of a source."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int = 1_700_000_000_000


class Publications(Target):
    """`inflight.uplink` and `inflight.publications` at a matcher, whose tables read lists and retained messages."""

    name = "lists, publications, retained messages"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._tables = RoutingTables()
        self._matcher = Matcher(
            self._tables,
            RoutingSettings(),
            MatcherCounters(),
            messages_partitions=4,
            retained_partitions=4,
            now_ms=lambda: 1_700_000_000_000,
        )
        self._sources = [
            PublicationSource(topic="t", partition=0, topic_id="id", is_uplink=is_uplink) for is_uplink in (True, False)
        ]
        self._offset = 0

    def feed(self, dice: random.Random) -> bool:
        tables, client = self._tables, dice.choice((b"c", b"d", None, b"\xff"))
        ended = [(dice.choice((ENDED, "x")), mutated(dice, b"5", (b"5",)))]
        tables.read_list(client, dice.choice((None, _LIST, mutated(dice, _LIST, (_LIST,)))), ended)
        headers = [*fuzzed_headers(dice), *dice.choices(_OF_UPLINK, k=dice.randrange(4))]
        if dice.random() < 0.2:
            tables.read_retained(dice.choice((None, b"a/b", b"\xff")), dice.choice((None, b"", b"p")), headers, 1_700_000_000_000)
        self._offset += 1
        record = _Record(self._offset, client, dice.choice((None, b"", b"p")), list(headers))
        return bool(self._matcher.route(dice.choice(self._sources), record))


class Recipients(Target):
    """`inflight.messages` with recipients: what a matcher, or somebody else, says of them."""

    name = "recipients of routed messages"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._session = FuzzedSession()
        self._connection_id = 0

    def feed(self, dice: random.Random) -> bool:
        session = self._session
        if dice.random() < 0.3:
            self._connection_id += 1
            clean = dice.random() < 0.5
            connected = ClientConnected(connection_id=self._connection_id, commands_partition=1, clean_start=clean)
            session.tell(EVENTS, encode_event(connected))
            session.tell(
                EVENTS, encode_event(Subscribed(connection_id=self._connection_id, subscriptions=_SUBSCRIPTIONS, version=1))
            )
        headers = (*(Header(name, value) for name, value in fuzzed_headers(dice)), Header(f"{RECIPIENT_PREFIX}x", b""))
        recipient = dice.choice((_ROUTING, mutated(dice, _ROUTING, (_ROUTING,)), b"", b"\xff"))
        session.tell(MESSAGES, b"p", headers, recipient)
        return not any(record.topic.endswith("dead-letters") for record in session.activate())
