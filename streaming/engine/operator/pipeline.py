"""Defines the settings of the query `sessions` as plain values, which Python workers get pickled, and which are compared and
hashed.

`pipeline_settings` (streaming/engine/lifecycle/settings_log.py) makes them from the configuration.
"""

import fnmatch
import re
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from state.dead_letters.exchanges import NO_EXCHANGES, Exchanges
from state.dead_letters.policy import Policies, Policy
from state.settings import RecordLimits, SessionSettings, Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionProfile:
    """Session settings for the clients whose id matches `pattern` (shell wildcards: `*`, `?`, `[…]`)."""

    pattern: str
    session: SessionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The settings of a micro-batch. Files of the checkpoint contain them (lifecycle/settings_log.py).

    Attributes:
        commands_partitions: The number of partitions of the topic `commands`. A connection that names a partition beyond them
            cannot exist, and Kafka's producer would wait for it until the query dies.
        profiles: The first match holds.
        policies: The highest priority holds, independently of the profile.
        exchanges: The exchanges for all clients.
        receipts, ledger: True if these records are written.
        stop_at_newer_events: Stops at events of a newer version; otherwise they are dead letters (intake/newer_events.py).
        checkpoint_lineage: Changes each time that an older copy of the checkpoint was restored; part of the `code` of commands.
        lean_worker: Works without pandas where this PySpark allows it (streaming/spark_internals/lean_worker.py).
        routing: True if publications are routed to subscribers, so that the matchers need the lists of sessions.
        messages_generation, events_generation: The generations of the topics that are read (state.model.numbered_partition).
    """

    commands_partitions: int
    topics: Topics = field(default_factory=Topics)
    session: SessionSettings = field(default_factory=SessionSettings)
    profiles: tuple[SessionProfile, ...] = ()
    policies: tuple[Policy, ...] = ()
    exchanges: Exchanges = NO_EXCHANGES
    limits: RecordLimits = field(default_factory=RecordLimits)
    receipts: bool = True
    ledger: bool = True
    stop_at_newer_events: bool = True
    checkpoint_lineage: str = ""
    lean_worker: bool = True
    routing: bool = False
    messages_generation: int = 0
    events_generation: int = 0


class SettingsOfClients:
    """Finds the session settings of a client id; caches the answers for recent clients."""

    def __init__(self, settings: PipelineSettings) -> None:
        of_all, *of_profiles = (
            replace(
                session,
                max_record_bytes=settings.limits.max_record_bytes,
                max_client_id_bytes=settings.limits.max_client_id_bytes,
                messages_generation=settings.messages_generation,
            )
            for session in (settings.session, *(profile.session for profile in settings.profiles))
        )
        expressions = (re.compile(fnmatch.translate(profile.pattern)) for profile in settings.profiles)
        patterns = list(zip(expressions, of_profiles, strict=True))
        policies = Policies(settings.policies)

        @cache
        def combined(session: SessionSettings, policy: Policy) -> SessionSettings:
            return replace(session, policy=policy, exchanges=settings.exchanges)

        @lru_cache(maxsize=65_536)
        def lookup(client_id: str) -> SessionSettings:
            session = next((session for pattern, session in patterns if pattern.match(client_id)), of_all)
            return combined(session, policies.of(client_id)) if settings.policies or settings.exchanges.declared else session

        # Without profiles and policies there is nothing to look up or cache.
        variable = patterns or settings.policies or settings.exchanges.declared
        self.of = lookup if variable else lambda client_id: of_all
