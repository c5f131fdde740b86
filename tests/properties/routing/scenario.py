"""The settings of one history: what may happen in it, and how often."""

import random
from dataclasses import dataclass
from typing import Final

from sinks.routing.settings import RoutingSettings, SharedStrategy
from state.settings import SessionSettings
from tests.properties.fast_path.scenario import Scenario

ROUTING: Final = RoutingSettings(enabled=True)
CLIENTS: Final = ("ann", "bob", "cid")
SHARED_FILTER: Final = "$share/g/s"
TOPICS: Final = {"a/t": ("a/t",), "a/+": ("a/t", "a/u"), SHARED_FILTER: ("s",)}
"""The topics that match each filter of the world."""


@dataclass(frozen=True, kw_only=True)
class RoutingScenario(Scenario):
    """clients: how many there are. filters: to which they subscribe. topics: to which they publish. takeovers: how often a device
    connects that is connected. writing, commits, crashes: how often a record of a matcher gets into the log, and it commits, and
    crashes. copies_land_late: records of a gateway, matcher or task that is thought dead may get into the log later. compacts:
    `subscriptions` is compacted. named: how often a backend sends a message that names a client.
    """

    clients: int = 2
    filters: tuple[str, ...] = ("a/t", "a/+")
    topics: tuple[str, ...] = ("a/t", "a/u")
    shared_strategy: SharedStrategy = "sticky"
    writing: int = 30
    commits: int = 10
    crashes: int = 3
    takeovers: int = 1
    copies_land_late: bool = True
    compacts: bool = True
    named: int = 0


def scenario_of(number: int) -> RoutingScenario:
    """Returns a scenario at random. The same number gives the same scenario."""
    pick = random.Random(number).choice
    is_shared = pick([False, False, True])
    topics = ("s",) if is_shared else pick([("a/t",), ("a/t", "a/u")])
    return RoutingScenario(
        session=SessionSettings(
            routing=True, fast_path=pick([True, True, False]), delivery_limit=-1, crash_limit=-1, max_inflight=pick([1, 3, 32])
        ),
        qos=pick([(2,), (1,), (1, 2, 0)]),
        versions=pick([(4,), (5,), (4, 5)]),
        expiry_s=pick([0, 3_600, 3_600]),
        clean_starts=pick([False, True]),
        faults=pick([0, 3, 8, 8]),
        stops=pick([True, True, False]),
        message_reads=pick([1, 3, 10]),
        clients=pick([2, 3]) if is_shared else pick([1, 2, 2]),
        landing=pick([30, 30, 4]),
        writing=pick([30, 30, 4]),
        commits=pick([10, 10, 1]),
        takeovers=pick([1, 1, 6]),
        filters=(SHARED_FILTER,) if is_shared else pick([("a/t",), ("a/t", "a/+")]),
        topics=topics,
        shared_strategy=pick(["sticky", "round_robin"]),
        serves_at_once=pick([False, True, True]),
        named=pick([0, 0, 2]),
    )
