"""Holds what a run has measured, and judges it."""

from dataclasses import dataclass, field

from trials.attacks.attackers import Said
from trials.attacks.gateway_watch import Usage


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The measurements of one phase. from_s, to_s: of the attack, time.time(); ended_s: of the pause after
    it. latencies_ms: of the messages that were sent during the attack; messages: until the pause was over. lost: connections of
    good devices that have ended. extra_bytes: of memory that the gateway may use beyond its limits: a batch of a backend has that
    size."""

    what: str
    from_s: float
    to_s: float
    ended_s: float
    lost: int
    gateway: Usage
    attacker: Said
    extra_bytes: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    messages: int = 0

    @property
    def fast_share(self) -> float:
        """Returns the share of messages that took the fast path, which does not wait for a micro-batch."""
        return self.gateway.fast_publishes / max(1, self.messages)


@dataclass(frozen=True, kw_only=True)
class Result:
    """allowed_bytes: of the gateway's memory. twice, missing: messages of the good devices."""

    phases: list[Phase]
    allowed_bytes: int
    sent: int
    twice: int
    missing: int


def failures(result: Result) -> list[str]:
    """Returns what must not be, whatever the machine."""
    found = [f"{phase.lost} good devices were disconnected: {phase.what}" for phase in result.phases if phase.lost]
    found += [
        f"{phase.gateway.most_bytes:,} bytes of memory: {phase.what}"
        for phase in result.phases
        if phase.gateway.most_bytes > result.allowed_bytes + phase.extra_bytes
    ]
    if result.missing or result.twice:
        found.append(f"{result.missing} messages are missing, {result.twice} came twice")
    return found
