"""The judgement: what happened in a run → what of it must not have happened. Pure.

1. From the backend to devices: nothing lost, nothing twice at QoS 2, in order, one final receipt for each message. Messages for
   later, of campaigns, and of different collapse keys may overtake each other.
2. From devices to the backend: nothing lost, nothing twice at QoS 2, in order.
3. From devices to devices, with routing: trials/faults/account/account_of_routing.py.
4. Wills: trials/faults/account/account_of_sessions.py, and the sessions that end there, too.
5. Presence: trials/faults/account/account_of_presence.py.
6. Campaigns: trials/faults/account/account_of_campaigns.py.
7. Takeovers by a standby: trials/faults/account/account_of_takeovers.py.
8. What may be dropped for busy clients: trials/faults/account/account_of_busy.py.
9. Messages for later, with collapse keys, and taken back: trials/faults/account/account_of_scheduling.py.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain

from trials.faults.account import (
    account_of_campaigns,
    account_of_presence,
    account_of_routing,
    account_of_scheduling,
    account_of_sessions,
    account_of_takeovers,
)
from trials.faults.account.account_of_busy import MAXLEN, Absences
from trials.faults.account.account_of_scheduling import CANCELLED, NEVER_SENT, REPLACED
from trials.faults.account.facts import DeviceFacts, Facts, Outcome, Received, Sent, Step, Violation
from trials.faults.plan.characters import Keeping

DELIVERED = "delivered"
SESSION_ENDED = "session_ended"


def violations(facts: Facts) -> list[Violation]:
    """Returns all violations, by subject."""
    of_others = (
        account_of_routing.violations(facts),
        account_of_sessions.violations(facts),
        account_of_presence.violations(facts),
        account_of_campaigns.violations(facts),
        account_of_scheduling.violations(facts),
        account_of_takeovers.violations(facts),
    )
    return [*_downlink(facts), *_receipts(facts), *_uplink(facts), *chain(*of_others)]


def _downlink(facts: Facts) -> Iterator[Violation]:
    outcome = {receipt.message_id: receipt.outcome for receipt in facts.receipts if receipt.final}
    sent: dict[str, list[Sent]] = defaultdict(list)
    for message in facts.sent:
        sent[message.client_id].append(message)
    for device in facts.devices:
        yield from (Violation(client_id=device.client_id, what=what, of=payload) for what, payload in device.oddities)
        yield from _arrivals(device, sent[device.client_id], outcome)
        for (qos, _), wanted in _orders(sent[device.client_id]).items():
            for payload in out_of_order(device.order[qos], wanted):
                yield Violation(client_id=device.client_id, what=f"out of order at QoS {qos}", of=payload)


def _orders(sent: Iterable[Sent]) -> dict[tuple[int, str], list[bytes]]:
    """Returns the payloads that have to come in order, by QoS and collapse key."""
    orders: dict[tuple[int, str], list[bytes]] = defaultdict(list)
    for message in sent:
        if message.due_s is None and not message.campaign:
            orders[message.qos, message.key].append(message.payload)
    return orders


def _arrivals(device: DeviceFacts, sent: list[Sent], outcome: dict[str, str]) -> Iterator[Violation]:
    known = {message.payload for message in sent}
    for payload in device.taken.keys() | device.handed.keys():
        if payload not in known:
            yield Violation(client_id=device.client_id, what="came and was never sent to it", of=payload)
    must_have_all, absences = device.character.keeping is Keeping.KEPT, Absences(device)
    for message in sent:
        payload = message.payload
        said = outcome.get(message.message_id)
        is_dropped = said == MAXLEN and absences.may_be_dropped(message)
        if must_have_all and said not in NEVER_SENT and not device.taken[payload] and not is_dropped:
            yield Violation(client_id=device.client_id, what=f"lost; its outcome is {said}", of=payload)
        elif said == DELIVERED and not device.handed[payload]:
            yield Violation(
                client_id=device.client_id, what="delivered, says the receipt, and the device has not got it", of=payload
            )
        copies = max(device.taken[payload], device.handed[payload])
        if message.qos == 2 and copies > 1:
            yield Violation(client_id=device.client_id, what=f"came {copies} times at QoS 2", of=payload)


def _receipts(facts: Facts) -> Iterator[Violation]:
    keeping = {device.client_id: device.character.keeping for device in facts.devices}
    absences = {device.client_id: Absences(device) for device in facts.devices}
    final: dict[str, set[bytes]] = defaultdict(set)
    outcome: dict[str, Outcome] = {}
    for receipt in facts.receipts:
        if receipt.final:
            final[receipt.message_id].add(receipt.value)
            outcome[receipt.message_id] = receipt
    for message in facts.sent:
        of, count = message.payload, len(final.pop(message.message_id, ()))
        if count != 1:
            yield Violation(client_id=message.client_id, what=f"{count} different final receipts", of=of)
            continue
        said = outcome[message.message_id].outcome
        allowed = {DELIVERED} if keeping[message.client_id] is Keeping.KEPT else {DELIVERED, SESSION_ENDED}
        allowed |= ({REPLACED} if message.key else set()) | ({CANCELLED} if message.is_cancelled else set())
        allowed |= {MAXLEN} if absences[message.client_id].may_be_dropped(message) else set()
        if said not in allowed:
            yield Violation(client_id=message.client_id, what=f"its outcome is {said}", of=of)
    for message_id in final:
        yield Violation(client_id=outcome[message_id].client_id, what="a receipt without a message", of=message_id.encode())


def _uplink(facts: Facts) -> Iterator[Violation]:
    received: dict[str, list[Received]] = defaultdict(list)
    for record in facts.uplink:
        received[record.client_id].append(record)
    ends_s: dict[str, list[float]] = defaultdict(list)
    for row in facts.sessions:
        if row.step is Step.SESSION_ENDED:
            ends_s[row.client_id].append(row.time_s)
    for device in facts.devices:
        yield from _publications(device, received[device.client_id], ends_s[device.client_id])


def _publications(device: DeviceFacts, records: list[Received], ends_s: list[float]) -> Iterator[Violation]:
    """Records with one `inflight-id` are one publication, written again by a micro-batch that was executed again.

    ends_s: of the sessions. What a device has given up with its session may be handed on after its end by each connection that
    has sent it: gateways had it. A micro-batch after an outage may have both the first copy and the end.
    """
    ids: dict[bytes, set[str]] = defaultdict(set)
    times_s: dict[bytes, list[float]] = defaultdict(list)
    order: list[bytes] = []
    for record in records:
        if record.payload not in ids:
            order.append(record.payload)
        ids[record.payload].add(record.inflight_id)
        times_s[record.payload].append(record.time_s if record.batch_s is None else record.batch_s)
    for publication in device.publications:
        copies = len(ids[publication.payload])
        if publication.answered and not copies:
            yield Violation(client_id=device.client_id, what="published, answered and lost", of=publication.payload)
        came_s = times_s[publication.payload]
        has_ended = any(min(came_s) <= end_s <= max(came_s) for end_s in ends_s) if came_s else False
        is_of_ended = publication.given_up and has_ended and copies <= publication.transmissions
        if publication.qos == 2 and copies > 1 and not is_of_ended:
            what = f"a publication was handed on {copies} times at QoS 2"
            yield Violation(client_id=device.client_id, what=what, of=publication.payload)
    known = {publication.payload for publication in device.publications}
    wills = {attempt.will for attempt in device.attempts}
    for payload in order:
        if payload not in known and payload not in wills:
            yield Violation(client_id=device.client_id, what="published by nobody", of=payload)
    for qos in () if device.is_bridged else (1, 2):
        # A message that was given up may still be in the socket of a frozen gateway, and come at any time.
        wanted = [p.payload for p in device.publications if p.qos == qos and not p.given_up]
        chosen = set(wanted)
        for payload in out_of_order([payload for payload in order if payload in chosen], wanted):
            yield Violation(client_id=device.client_id, what=f"a publication is out of order at QoS {qos}", of=payload)


def out_of_order(found: Iterable[bytes], wanted: list[bytes]) -> list[bytes]:
    """Returns the payloads that came after one that should follow them. Unwanted and missing payloads are ignored."""
    place = {payload: number for number, payload in enumerate(wanted)}
    late, furthest = [], -1
    for payload in found:
        if payload not in place:
            continue
        if place[payload] < furthest:
            late.append(payload)
        furthest = max(furthest, place[payload])
    return late


def outcomes(receipts: Iterable[Outcome]) -> Counter[str]:
    """Final receipts by outcome, each message once."""
    return Counter({receipt.message_id: receipt.outcome for receipt in receipts if receipt.final}.values())
