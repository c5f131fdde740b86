"""What the `sessions` query needs to know, as plain values: pickled once into every Python worker, compared, and hashed.

Built from the configuration by streaming/engine/lifecycle/pipeline.py; tests and benchmarks build it by hand.
"""

import fnmatch
import re
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from state.dead_letters.exchanges import NO_EXCHANGES, Exchanges
from state.dead_letters.policy import Policies, Policy
from state.records.settings import RecordLimits, Topics
from state.settings import SessionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Other session settings for the clients whose id matches `pattern` (shell wildcards: `*`, `?`, `[…]`)."""

    pattern: str
    session: SessionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """commands_partitions: of the topic `commands`; a connection that names another one cannot exist, and Kafka's producer would
    wait for such a partition until the query dies.
    receipts, ledger: whether these records are written at all. profiles: the first match holds.
    policies: the highest priority holds, whichever profile does. exchanges: for all clients.
    max_timers_per_partition: of sessions that are due, in each micro-batch; 0 = no limit (due_timers.py).
    stop_at_newer_events: at events of a newer version; else they are dead letters (intake/newer_events.py).
    history: another one each time that an older copy of the checkpoint was put back; part of the `code` of commands.
    lean_worker: without pandas where this PySpark allows it (lean_worker.py).
    """

    commands_partitions: int
    topics: Topics = field(default_factory=Topics)
    session: SessionSettings = field(default_factory=SessionSettings)
    profiles: tuple[Profile, ...] = ()
    policies: tuple[Policy, ...] = ()
    exchanges: Exchanges = NO_EXCHANGES
    limits: RecordLimits = field(default_factory=RecordLimits)
    receipts: bool = True
    ledger: bool = True
    max_timers_per_partition: int = 2_500
    stop_at_newer_events: bool = True
    history: str = ""
    lean_worker: bool = True


class SettingsOfClients:
    """Which session settings hold for a client id; remembers the answer for the clients seen last."""

    def __init__(self, settings: PipelineSettings) -> None:
        patterns = [(re.compile(fnmatch.translate(profile.pattern)), profile.session) for profile in settings.profiles]

        policies = Policies(settings.policies)

        @cache
        def combined(session: SessionSettings, policy: Policy) -> SessionSettings:
            return replace(session, policy=policy, exchanges=settings.exchanges)

        @lru_cache(maxsize=65_536)
        def lookup(client_id: str) -> SessionSettings:
            session = next((session for pattern, session in patterns if pattern.match(client_id)), settings.session)
            return combined(session, policies.of(client_id)) if settings.policies or settings.exchanges.declared else session

        # Without profiles and policies there is nothing to look up, and nothing to remember.
        variable = patterns or settings.policies or settings.exchanges.declared
        self.of = lookup if variable else lambda client_id: settings.session
