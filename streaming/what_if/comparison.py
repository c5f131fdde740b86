"""Compares both replays of many clients, and adds up what the parts of the job have found."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from state.model import ClientId, MessageId, Outcome
from streaming.what_if.client_replay import RunResult

MOST_EXAMPLES: Final = 20
OTHERS: Final = "*"
"""The group of clients of no pattern."""
_ARRIVED: Final = (Outcome.DELIVERED, Outcome.SENT)


class LeftOut(StrEnum):
    """Why a client is not compared; the text is for people."""

    BEGUN_BEFORE = "their sessions began before the log that was read, and hold what it does not say (--warm-up reads more of it)"
    NOT_REPRODUCED = "their replay under the present settings ends messages otherwise than the ledger says"
    FAILED = "their sessions failed in the replay, as sessions in quarantine do"


class Example(msgspec.Struct, kw_only=True):
    """A message that ends otherwise, or a client that is left out.

    Attributes:
        before: For a client that is left out, the outcomes of the message in the ledger.
    """

    client_id: ClientId
    message_id: MessageId
    before: str
    after: str


class GroupTally(msgspec.Struct, kw_only=True):
    """Counts the messages of a group of clients.

    Attributes:
        before, after: Messages by outcome, as it was and as it would be.
        resent_before, resent_after: Transmissions that repeated another one.
        changed: Messages by both outcomes, if they differ: `maxlen → delivered`.
    """

    clients: int = 0
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    resent_before: int = 0
    resent_after: int = 0
    changed: dict[str, int] = {}

    def add(self, other: "GroupTally") -> None:
        self.clients += other.clients
        self.resent_before += other.resent_before
        self.resent_after += other.resent_after
        self.before = _sum(self.before, other.before)
        self.after = _sum(self.after, other.after)
        self.changed = _sum(self.changed, other.changed)


class Flow(msgspec.Struct, kw_only=True):
    """Messages that ended in one part of the period. lost: with any outcome but delivered and sent."""

    arrived_before: int = 0
    arrived_after: int = 0
    lost_before: int = 0
    lost_after: int = 0

    def count(self, outcome: str, *, after: bool) -> None:
        kind = "arrived" if outcome in _ARRIVED else "lost"
        name = f"{kind}_{'after' if after else 'before'}"
        setattr(self, name, getattr(self, name) + 1)

    def add(self, other: "Flow") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Comparison(msgspec.Struct, kw_only=True):
    """The findings of the replay of some clients.

    Attributes:
        groups: By the pattern of client ids.
        verified: Outcomes of the first replay that the ledger has, too.
        left_out: Clients by the reason.
        flow: By the number of the part of the period.
    """

    groups: dict[str, GroupTally] = {}
    verified: int = 0
    left_out: dict[str, int] = {}
    flow: dict[int, Flow] = {}
    examples: list[Example] = []
    unlike_ledger: list[Example] = []

    def leave_out(self, reason: LeftOut, example: Example | None = None) -> None:
        self.left_out = _sum(self.left_out, {reason.name.lower(): 1})
        if example is not None:
            self.unlike_ledger = [*self.unlike_ledger, example][:MOST_EXAMPLES]

    def compare(self, group: str, client_id: ClientId, before: RunResult, after: RunResult) -> None:
        """Adds a client."""
        changed: Counter[str] = Counter()
        for message_id in {**before.outcomes, **after.outcomes}:
            was, would_be = before.of_message(message_id), after.of_message(message_id)
            if was != would_be:
                changed[f"{was} → {would_be}"] += 1
                if len(self.examples) < MOST_EXAMPLES:
                    self.examples = [
                        *self.examples,
                        Example(client_id=client_id, message_id=message_id, before=was, after=would_be),
                    ]
        self.verified += sum(map(len, before.outcomes.values()))
        tally = GroupTally(
            clients=1,
            before=dict(before.totals()),
            after=dict(after.totals()),
            resent_before=before.resends,
            resent_after=after.resends,
            changed=dict(changed),
        )
        self._group(group).add(tally)

    def count_flow(self, before: RunResult, after: RunResult, *, since_ms: int, width_ms: int) -> None:
        """Adds the times at which messages ended.

        Args:
            width_ms: The length of a part of the period.
        """
        for result in (before, after):
            for at_ms, outcome in result.ended_ms:
                part = max(0, at_ms - since_ms) // width_ms
                self.flow.setdefault(part, Flow()).count(outcome, after=result is after)

    def add(self, other: "Comparison") -> None:
        """Adds what another part of the job has found."""
        for name, tally in other.groups.items():
            self._group(name).add(tally)
        for part, flow in other.flow.items():
            self.flow.setdefault(part, Flow()).add(flow)
        self.verified += other.verified
        self.left_out = _sum(self.left_out, other.left_out)
        self.examples = [*self.examples, *other.examples][:MOST_EXAMPLES]
        self.unlike_ledger = [*self.unlike_ledger, *other.unlike_ledger][:MOST_EXAMPLES]

    def total(self) -> GroupTally:
        """Returns the sum of all groups."""
        found = GroupTally()
        for tally in self.groups.values():
            found.add(tally)
        return found

    def by_group(self) -> list[tuple[str, GroupTally]]:
        """Returns the tallies with their names: all clients first, then each group. A single group is all clients."""
        if len(self.groups) == 1:
            ((name, tally),) = self.groups.items()
            return [("all" if name == OTHERS else name, tally)]
        return [("all", self.total()), *sorted(self.groups.items())]

    def as_json(self) -> dict[str, Any]:
        """Returns the document of `--json`, without the flow."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        del document["flow"]
        return {"total": msgspec.to_builtins(self.total()), **document}

    def _group(self, name: str) -> GroupTally:
        return self.groups.setdefault(name, GroupTally())


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Adds counts; the largest come first."""
    return dict((Counter(one) + Counter(other)).most_common())
