"""The settings of one history: what may happen in it, and how often."""

import random
from dataclasses import dataclass, field, replace

from state.settings import Overflow, RetryMqtt5, SessionSettings


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The settings that stay the same while a world lives.

    qos, lives_s, priorities: of the messages, in turn; None = for ever. versions: MQTT's, of the connections in turn.
    faults: how many may happen. refusals: the device refuses messages. large: some are too large for the fast path.
    switches: the fast path is switched off and on. stops: gateways freeze and crash.
    begins_open: the device is connected and its path is open. leaves_first: it has left, and a message has come since.
    message_reads: how often the engine reads messages.
    late_offers: a router that is behind offers what another one has offered.
    landing: how often Kafka stores what it was given.
    serves_at_once: gateways do not wait for the engine at a clean start.
    continues: a gateway that the client has left serves it at once when it comes back; needs serves_at_once. The engine reads no
    message before an older event, or before the gateway of a client that it has not accepted, and lets no time pass before it has
    read all events (edge_cases.md).
    max_held_bytes: of offers, at a connection.
    keys, delays_s: of the messages, in turn; None = no collapse key, no deliver-at. cancels: the backend takes messages back.
    recreates: somebody deletes the topic of the messages and creates it again, and the loss is accepted.
    unnamed: every message whose number is a multiple of this has no message id of its own.
    """

    session: SessionSettings = field(default_factory=SessionSettings)
    qos: tuple[int, ...] = (1, 2, 0)
    versions: tuple[int, ...] = (4, 5)
    receive_maximum: int = 65_535
    expiry_s: int = 3_600
    clean_starts: bool = False
    lives_s: tuple[int | None, ...] = (None,)
    priorities: tuple[int, ...] = (0,)
    faults: int = 6
    refusals: bool = False
    large: bool = False
    switches: bool = False
    begins_open: bool = True
    leaves_first: bool = False
    routers: int = 1
    stops: bool = True
    message_reads: int = 2
    late_offers: bool = False
    unnamed: int = 3
    landing: int = 30
    serves_at_once: bool = False
    continues: bool = False
    max_held_bytes: int = 8 << 20
    keys: tuple[str | None, ...] = (None,)
    delays_s: tuple[int | None, ...] = (None,)
    cancels: bool = False
    recreates: bool = False


def scenario_of(number: int) -> Scenario:
    """Returns a scenario at random. The same number gives the same scenario."""
    pick = random.Random(number).choice
    scenario = Scenario(
        session=SessionSettings(
            max_inflight=pick([1, 2, 3]),
            prefetch=pick([0, 0, 2]),
            max_mqueue_len=pick([1, 2, 1_000, 1_000]),
            overflow=pick(list(Overflow)),
            mqueue_store_qos0=pick([True, True, False]),
            delivery_limit=pick([-1, 2, 20]),
            crash_limit=(-1, 1, 20)[number % 3],
            deduplication_window=pick([0, 3, 100]),
            retry_mqtt5=pick(list(RetryMqtt5)),
            max_backlog_bytes=(0, 1 << 26)[number % 2],
            progress_timeout_ms=(1_000, 30_000)[number // 2 % 2],
            leads_from=(1, 2, 16)[number % 3],
        ),
        qos=pick([(2,), (1,), (2, 1, 0), (1, 2), (0, 2), (0,)]),
        versions=pick([(4,), (5,), (4, 5)]),
        receive_maximum=pick([1, 2, 65_535]),
        expiry_s=pick([0, 60, 3_600, 3_600]),
        clean_starts=pick([False, False, True]),
        lives_s=pick([(None,), (None,), (None, 1, 20), (None, 0)]),
        priorities=pick([(0,), (0,), (0,), (0, 5)]),
        faults=pick([0, 2, 6]),
        refusals=pick([False, False, True]),
        large=pick([False, True]),
        switches=pick([False, False, False, True]),
        begins_open=pick([True, True, True, False]),
        routers=pick([1, 1, 2]),
        stops=pick([True, True, False]),
        message_reads=pick([1, 3, 10]),
        late_offers=pick([False, False, True]),
        unnamed=pick([3, 3, 1]),
        serves_at_once=pick([True, False]),
        max_held_bytes=pick([8 << 20, 8 << 20, 1_300]),
        keys=pick([(None,), (None,), ("k",), ("k", "l", None)]),
        delays_s=pick([(None,), (None,), (None, None, 2, 0), (1, None)]),
        cancels=pick([False, False, True]),
        recreates=number % 4 == 0,
    )
    session = replace(scenario.session, max_send_rate=pick([0, 0, 0, 0, 0, 1, 3]))
    continues = scenario.serves_at_once and pick([True, True, False])
    if continues:
        session = replace(session, mqueue_store_qos0=True, max_send_rate=0)
    return replace(scenario, session=session, continues=continues)


def scenario_of_leaving(number: int) -> Scenario:
    """Returns one in which the device comes and goes, and most messages are plain."""
    scenario, pick = scenario_of(number), random.Random(number).choice
    session = replace(scenario.session, mqueue_store_qos0=True, max_send_rate=0, max_mqueue_len=pick([3, 6, 1_000]))
    return replace(
        scenario,
        session=session,
        expiry_s=pick([60, 3_600]),
        lives_s=pick([(None,), (None,), (None, None, None, 20)]),
        priorities=(0,),
        refusals=False,
        large=False,
        switches=False,
        begins_open=True,
        leaves_first=True,
        routers=1,
        serves_at_once=True,
        continues=True,
        keys=pick([(None,), (None,), (None, None, None, "k", "k")]),
        delays_s=(None,),
        cancels=pick([False, False, True]),
        recreates=number % 16 == 0,
    )
