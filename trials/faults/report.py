"""The tables at the end of a run, and the history of what must not have happened."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from trials.faults.account.account import outcomes
from trials.faults.account.account_of_routing import came_before_subscribe, matches, owed, owed_to_group, publications
from trials.faults.account.account_of_takeovers import waits
from trials.faults.account.facts import FROM_DEVICE, Facts, LoggedEnd, Step, Violation
from trials.faults.account.recovery import Recovery, recoveries, spread
from trials.faults.log_reader import LogReader
from trials.faults.plan.busy import BUSY
from trials.faults.plan.faults import Kind, Victim

SHOWN = 10
HISTORIES = 3
HISTORY_LINES = 60


def show(facts: Facts, violations: Sequence[Violation], reader: LogReader, console: Console) -> None:
    """Prints the result of a run. The tables are Markdown, as they are in docs/project/verification.md."""
    for table in (_faults(recoveries(facts)), _traffic(facts), *_routed(facts), _endings(facts), _latency(facts)):
        console.print(table)
    lengths_s = ", ".join(f"{outage.ended_s - outage.began_s:.0f}" for outage in facts.outages)
    console.print(
        f"the engine was away for {lengths_s or 'no'} s, from the fault to the end of the second micro-batch that began after it"
    )
    console.print(_standstills(facts))
    if facts.takeovers:
        p50, most = spread(waits(facts.takeovers))
        count = len(facts.takeovers)
        console.print(f"{count} engines were killed while a standby waited; it worked after {p50:.1f} s, at most {most:.1f} s")
    if violations:
        console.print(_found(violations))
    for violation in violations[:SHOWN]:
        console.print(f"violation: {violation}", markup=False, style="bold red")
    if len(violations) > SHOWN:
        console.print(f"… and {len(violations) - SHOWN} more")
    for violation in _one_each(violations)[:HISTORIES]:
        console.print(f"\nhistory of {violation}", markup=False)
        for line in history(facts, violation, reader):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(violations)} violations", style="bold red" if violations else "bold green")


def _standstills(facts: Facts) -> str:
    alone = [
        pause
        for pause in facts.standstills
        if all(pause.ended_s < outage.began_s or pause.began_s > outage.ended_s for outage in facts.outages)
    ]
    longest_s = max((pause.ended_s - pause.began_s for pause in alone), default=0.0)
    return f"the engine stood still {len(alone)} times although its last fault was over, for {longest_s:.0f} s at most"


def history(facts: Facts, violation: Violation, reader: LogReader) -> list[str]:
    """The records of all topics around the one that it is about, the last ones if there is none; the last faults and the last
    connections of the device.
    """
    if violation.of.startswith(FROM_DEVICE):
        return list(reader.route(violation.client_id, violation.of)) + _around(facts, violation)
    lines, about = list(reader.history(violation.client_id, violation.of)), violation.of.decode(errors="replace")
    first = next((number for number, line in enumerate(lines) if about and about in line), len(lines))
    start = max(0, min(first - HISTORY_LINES // 2, len(lines) - HISTORY_LINES))
    lines = lines[start : start + HISTORY_LINES]
    return lines + _around(facts, violation)


def _around(facts: Facts, violation: Violation) -> list[str]:
    device = next((device for device in facts.devices if device.client_id == violation.client_id), None)
    lines = [f"{suffered.fault} from {suffered.began_s:.3f} to {suffered.ended_s:.3f}" for suffered in facts.suffered][-20:]
    if device is None:
        return lines
    about = {publication.payload: publication for each in facts.devices for publication in each.publications}.get(violation.of)
    if about is not None:
        lines += [repr(about), *(repr(period) for period in device.periods if matches(period.topic_filter, about.topic))]
        lines += [repr(arrival) for arrival in device.routed if arrival.payload == violation.of]
    return lines + [repr(attempt) for attempt in device.attempts][-20:]


def _one_each(violations: Sequence[Violation]) -> list[Violation]:
    """The first of each client."""
    return list({violation.client_id: violation for violation in reversed(violations)}.values())


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, box=box.MARKDOWN)


def _faults(found: Sequence[Recovery]) -> Table:
    """Returns a table of faults in seconds; account/recovery.py defines its terms."""
    table = _table("What was done", "fault", "of", "times", "in pairs", "recovery p50", "recovery most", "longest wait")
    rows: dict[tuple[Victim, Kind, str], list[Recovery]] = defaultdict(list)
    for recovery in found:
        fault = recovery.suffered.fault
        rows[fault.victim, fault.kind, fault.name].append(recovery)
    order = sorted(rows, key=lambda row: (list(Victim).index(row[0]), list(Kind).index(row[1]), row[2]))
    for victim, _, name in order:
        _add_faults(table, name, victim, rows[victim, _, name])
    _add_faults(table, "all", "", found)
    return table


def _add_faults(table: Table, name: str, victim: str, found: Sequence[Recovery]) -> None:
    p50, most = spread(recovery.recovered_s for recovery in found)
    _, longest = spread(recovery.longest_s for recovery in found)
    pairs = sum(not recovery.suffered.alone for recovery in found)
    table.add_row(name, victim, str(len(found)), str(pairs), f"{p50:.1f}", f"{most:.1f}", f"{longest:.1f}")


def _traffic(facts: Facts) -> Table:
    table = _table(
        "Traffic", "messages", "sent", "arrived", "again", "replaced, taken back, or unfinished at the end of a session"
    )
    devices = {device.client_id: device for device in facts.devices}
    for qos, name in ((qos, name) for name in ("to devices", "to busy clients among them") for qos in (1, 2)):
        sent = [message for message in facts.sent if message.qos == qos]
        if name != "to devices":
            sent = [message for message in sent if message.client_id.startswith(BUSY)]
        copies = [devices[message.client_id].taken[message.payload] for message in sent]
        arrived = sum(1 for count in copies if count)
        table.add_row(f"{name}, QoS {qos}", *_numbers(len(sent), arrived, sum(copies) - arrived, len(sent) - arrived))
    ids: dict[bytes, set[str]] = defaultdict(set)
    for record in facts.uplink:
        ids[record.payload].add(record.inflight_id)
    for qos in (1, 2):
        publications = [p for device in facts.devices for p in device.publications if p.qos == qos]
        copies = [len(ids[publication.payload]) for publication in publications]
        arrived = sum(1 for count in copies if count)
        given_up = sum(p.given_up for p in publications)
        table.add_row(f"from devices, QoS {qos}", *_numbers(len(publications), arrived, sum(copies) - arrived, given_up))
    return table


def _routed(facts: Facts) -> Iterable[Table]:
    """Yields a table about what devices published to each other, if they did."""
    if not any(device.periods for device in facts.devices):
        return
    table = _table("From devices to devices", "publications", "sent", "must arrive", "arrived", "again", "sent before SUBSCRIBE")
    known = publications(facts)
    due = [payload for device in facts.devices for payload in owed(device, known.values())]
    due += owed_to_group(facts.devices, known.values())
    for qos in (0, 1, 2):
        arrivals = [
            (device, arrival)
            for device in facts.devices
            for arrival in device.routed
            if arrival.is_new and arrival.payload in known
        ]
        of_qos = [each for each in arrivals if known[each[1].payload].publication.qos == qos]
        different = {(device.client_id, arrival.epoch, arrival.payload) for device, arrival in of_qos}
        early = sum(came_before_subscribe(device, arrival, known[arrival.payload]) for device, arrival in of_qos)
        sent = sum(routed.publication.qos == qos for routed in known.values())
        must = sum(known[payload].publication.qos == qos for payload in due)
        numbers = sent, must, len(different), len(of_qos) - len(different), early
        table.add_row(f"QoS {qos}", *_numbers(*numbers))
    yield table


def _endings(facts: Facts) -> Table:
    table = _table("How it ended", "", "")
    for outcome, count in sorted(outcomes(facts.receipts).items()):
        table.add_row(f"receipts: {outcome}", f"{count:,}")
    fast = {receipt.message_id for receipt in facts.receipts if receipt.fast_path}
    table.add_row("messages first sent by the fast path", f"{len(fast):,} ({len(fast) / max(1, len(facts.sent)):.0%})")
    wills = {attempt.will for device in facts.devices for attempt in device.attempts}
    ends = Counter(connection.end for connection in facts.connections)
    attempts = Counter(attempt.end for device in facts.devices for attempt in device.attempts)
    steps = Counter(row.step for row in facts.sessions)
    for end, count in sorted(attempts.items()):
        table.add_row(f"connections, say the devices: {end}", f"{count:,}")
    for logged_end in LoggedEnd:
        table.add_row(f"accepted connections, says the log: {logged_end}", f"{ends[logged_end]:,}")
    table.add_row("wills published", f"{len({record.payload for record in facts.uplink} & wills):,}")
    table.add_row("sessions ended", f"{steps[Step.SESSION_ENDED]:,}")
    table.add_row("changes of presence", f"{len(set(facts.presence)):,}")
    table.add_row("messages of campaigns", f"{sum(bool(message.campaign) for message in facts.sent):,}")
    table.add_row("campaigns", f"{len(facts.campaigns):,}")
    table.add_row("kills of their processes", f"{sum(campaign.kills for campaign in facts.campaigns):,}")
    table.add_row("their messages that are in Kafka twice", f"{sum(campaign.copies for campaign in facts.campaigns):,}")
    table.add_row("clients to which they could send nothing", f"{sum(len(campaign.unsent) for campaign in facts.campaigns):,}")
    return table


def _found(violations: Sequence[Violation]) -> Table:
    """Counts violations of each kind, with the numbers in their text masked."""
    table = _table("What must not have happened", "what", "times")
    for what, count in Counter(re.sub(r"\d+(\.\d+)?", "N", violation.what) for violation in violations).most_common():
        table.add_row(what, f"{count:,}")
    return table


def _latency(facts: Facts) -> Table:
    """Returns a table of the times from the backend's send to the first arrival at a device."""
    table = _table("Latency", "seconds from the backend to the device", "messages", "p50", "p99", "most")
    first_s = {payload: time_s for device in facts.devices for payload, time_s in device.first_s.items()}
    arrived = [message for message in facts.sent if message.payload in first_s and message.due_s is None and not message.campaign]
    times = [(message.qos, first_s[message.payload] - message.sent_s) for message in arrived]
    for qos in (1, 2):
        _row(table, f"QoS {qos}", [took_s for of, took_s in times if of == qos])
    return table


def _row(table: Table, name: str, took_s: list[float]) -> None:
    if took_s:
        ordered = sorted(took_s)
        p99 = ordered[int(0.99 * (len(ordered) - 1))]
        table.add_row(name, f"{len(ordered):,}", f"{median(ordered):.2f}", f"{p99:.2f}", f"{ordered[-1]:.2f}")


def _numbers(*numbers: int) -> Iterable[str]:
    return (f"{number:,}" for number in numbers)
