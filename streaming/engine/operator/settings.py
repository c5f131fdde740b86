"""What the `sessions` query needs to know, as plain values: pickled once into every Python worker, compared, and hashed.

Built from the configuration by `streaming.engine.run.pipeline_settings`; tests and benchmarks build it by hand.
"""

import fnmatch
import re
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from state.dead_letters.exchanges import NO_EXCHANGES, Exchanges
from state.dead_letters.policy import Policies, Policy
from state.settings import SessionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Names of the Kafka topics, `messages` and `events` in, the others out."""

    messages: str = "inflight.messages"
    events: str = "inflight.events"
    commands: str = "inflight.commands"
    uplink: str = "inflight.uplink"
    receipts: str = "inflight.receipts"
    dead_letters: str = "inflight.dead-letters"
    ledger: str = "inflight.ledger"
    throttle: str = "inflight.throttle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Other session settings for the clients whose id matches `pattern` (shell wildcards: `*`, `?`, `[…]`)."""

    pattern: str
    session: SessionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """commands_partitions: of the topic `commands`; a connection that names another one cannot exist, and Kafka's producer would
    wait for such a partition until the query dies.
    max_payload_bytes: a larger message is a dead letter with reason `invalid`.
    max_headers_bytes: the same for the names and values of all headers of one message together.
    max_record_bytes: no record that we write is larger than about this, so that no broker refuses one and stops the query;
    batches of commands and of ledger rows are divided, payloads of dead letters that were never acceptable are cut.
    max_client_id_bytes: a longer key of a record addresses nobody; gateways refuse such clients.
    receipts, ledger: whether these records are written at all. profiles: the first match holds.
    policies: the highest priority holds, whichever profile does. exchanges: for all clients.
    lean_worker: without pandas where this PySpark allows it (lean_worker.py).
    """

    commands_partitions: int
    topics: Topics = Topics()
    session: SessionSettings = field(default_factory=SessionSettings)
    profiles: tuple[Profile, ...] = ()
    policies: tuple[Policy, ...] = ()
    exchanges: Exchanges = NO_EXCHANGES
    max_payload_bytes: int = 262_144
    max_headers_bytes: int = 65_536
    max_record_bytes: int = 900_000
    max_client_id_bytes: int = 1_024
    receipts: bool = True
    ledger: bool = True
    lean_worker: bool = True

    def __post_init__(self) -> None:
        needed = self.max_payload_bytes + 2 * self.max_headers_bytes
        if needed > self.max_record_bytes:
            raise ValueError(
                f"max_record_bytes is {self.max_record_bytes}, but a message of the largest size needs {needed}: "
                "raise max_record_bytes (and max.message.bytes of the topics) or lower max_payload_bytes"
            )


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
