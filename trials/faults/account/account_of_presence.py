"""Presence: what `inflight.presence` says when all devices have left → what of it is not true. Pure."""

from collections.abc import Iterator

from trials.faults.account.facts import Facts, SaidPresence, Status, Violation
from trials.faults.plan.characters import Keeping


def violations(facts: Facts) -> Iterator[Violation]:
    """Yields clients about which the last word is wrong: a kept session is offline, and any other one is gone."""
    last = last_words(facts.presence)
    for device in facts.devices:
        if not any(attempt.accepted_s is not None for attempt in device.attempts):
            continue
        said = last.get(device.client_id)
        due = Status.OFFLINE if device.character.keeping is Keeping.KEPT else Status.GONE
        if said is None:
            yield Violation(client_id=device.client_id, what="its presence was never announced")
        elif said.status is not due:
            what = f"its presence is {said.status} at the end of the run, and it is {due}"
            yield Violation(client_id=device.client_id, what=what)


def last_words(records: list[SaidPresence]) -> dict[str, SaidPresence]:
    """Returns what counts for each client: the highest record, and of equal ones the last, as docs/guides/presence.md says."""
    found: dict[str, SaidPresence] = {}
    for record in records:
        known = found.get(record.client_id)
        if known is None or _order(record) >= _order(known):
            found[record.client_id] = record
    return found


def _order(record: SaidPresence) -> tuple[int, int]:
    return record.connection_id, list(Status).index(record.status)
