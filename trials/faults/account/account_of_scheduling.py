"""Messages for later, with collapse keys, and taken back: what became of them → what of it must not have happened. Pure.

1. A message for later never comes before its time.
2. What was replaced or cancelled never comes.
3. A message is replaced by a newer one to the same client with the same key, which a session has accepted. So the newest one of
   a key is never replaced.

That nothing is lost, and which outcomes a message may have, says trials/faults/account/account.py.
"""

import re
from collections.abc import Iterator

from trials.faults.account.facts import DeviceFacts, Facts, Outcome, Sent, Violation

REPLACED = "replaced"
CANCELLED = "cancelled"
NEVER_SENT = (REPLACED, CANCELLED)
_BY = re.compile(r"by (\S+),")


def violations(facts: Facts) -> Iterator[Violation]:
    final = {receipt.message_id: receipt for receipt in facts.receipts if receipt.final}
    place = {message.message_id: (number, message) for number, message in enumerate(facts.sent)}
    devices = {device.client_id: device for device in facts.devices}
    for message in facts.sent:
        said = final.get(message.message_id)
        yield from _arrival(message, devices[message.client_id], said)
        if said is not None and said.outcome == REPLACED and (wrong := _wrong_successor(message, said, place, final)):
            yield Violation(client_id=message.client_id, what=wrong, of=message.payload)


def _arrival(message: Sent, device: DeviceFacts, said: Outcome | None) -> Iterator[Violation]:
    first_s = device.first_s.get(message.payload)
    if first_s is not None and message.due_s is not None and first_s < message.due_s:
        what = f"came {message.due_s - first_s:.3f} s before its time"
        yield Violation(client_id=device.client_id, what=what, of=message.payload)
    if said is not None and said.outcome in NEVER_SENT and device.taken[message.payload]:
        yield Violation(client_id=device.client_id, what=f"came, and its outcome is {said.outcome}", of=message.payload)


def _wrong_successor(message: Sent, said: Outcome, place: dict[str, tuple[int, Sent]], final: dict[str, Outcome]) -> str:
    """Returns what is wrong with the message that has replaced this one; empty = nothing."""
    found = _BY.match(said.detail)
    if found is None or found[1] not in place:
        return "replaced by a message that nobody has sent"
    number, newer = place[found[1]]
    if (newer.client_id, newer.key) != (message.client_id, message.key):
        return "replaced by a message with another key, or to another client"
    if number <= place[message.message_id][0]:
        return "replaced by a message that is not newer"
    return "" if newer.message_id in final else "replaced by a message that no session has accepted"
