"""The tables at the end of a run, and the history of what must not have happened."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.soak.account import outcomes
from tests.soak.facts import Facts, LoggedEnd, Step, Violation
from tests.soak.log_reader import LogReader
from tests.soak.schedule import Fault, Harm, Victim

SHOWN = 10
HISTORIES = 3
HISTORY_LINES = 60
Done = Sequence[tuple[Fault, float, float]]


def show(facts: Facts, done: Done, violations: Sequence[Violation], reader: LogReader, console: Console) -> None:
    """Everything, for people."""
    for table in (_faults(done), _traffic(facts), _endings(facts), _latency(facts, done)):
        console.print(table)
    lengths_s = ", ".join(f"{outage.ended_s - outage.began_s:.0f}" for outage in facts.outages)
    console.print(
        f"the engine was away for {lengths_s or 'no'} s, from the fault to the first micro-batch that began and ended after it"
    )
    for violation in violations[:SHOWN]:
        console.print(f"violation: {violation}", markup=False, style="bold red")
    if len(violations) > SHOWN:
        console.print(f"… and {len(violations) - SHOWN} more")
    for violation in _one_each(violations)[:HISTORIES]:
        console.print(f"\nhistory of {violation}", markup=False)
        for line in history(facts, violation, reader, done):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(violations)} violations", style="bold red" if violations else "bold green")


def history(facts: Facts, violation: Violation, reader: LogReader, done: Done) -> list[str]:
    """The records of all topics, the faults and the connections of the device; the last of them if they are many."""
    lines = list(islice(reader.history(violation.client_id, violation.of), 2_000))
    lines = lines[-HISTORY_LINES:]
    (device,) = [device for device in facts.devices if device.client_id == violation.client_id]
    lines += [f"{fault} from {began_s:.3f} to {ended_s:.3f}" for fault, began_s, ended_s in done][-20:]
    return lines + [repr(attempt) for attempt in device.attempts][-20:]


def _one_each(violations: Sequence[Violation]) -> list[Violation]:
    """The first of each client."""
    return list({violation.client_id: violation for violation in reversed(violations)}.values())


def _faults(done: Done) -> Table:
    table = Table("faults", *Harm, title="What was done to the processes")
    count = Counter((fault.victim, fault.harm) for fault, _, _ in done)
    for victim in Victim:
        table.add_row(victim, *(str(count[victim, harm]) for harm in Harm))
    return table


def _traffic(facts: Facts) -> Table:
    table = Table("messages", "sent", "arrived", "again", "unfinished at the end of a session", title="Traffic")
    for qos in (1, 2):
        sent = [message.message_id.encode() for message in facts.sent if message.qos == qos]
        copies = [max(device.taken[payload] for device in facts.devices) for payload in sent]
        arrived = sum(1 for count in copies if count)
        table.add_row(f"to devices, QoS {qos}", *_numbers(len(sent), arrived, sum(copies) - arrived, len(sent) - arrived))
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


def _endings(facts: Facts) -> Table:
    table = Table("", "", title="How it ended")
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
    return table


def _latency(facts: Facts, done: Done) -> Table:
    """To any device that was there, from when the backend sent the message; after a fault: of what was sent within 10 s of it."""
    table = Table("seconds from the backend to the device", "messages", "p50", "p99", "most", title="Latency")
    first_s = {payload: time_s for device in facts.devices for payload, time_s in device.first_s.items()}
    times = [(m.sent_s, first_s[m.message_id.encode()] - m.sent_s) for m in facts.sent if m.message_id.encode() in first_s]
    _row(table, "all", [took_s for _, took_s in times])
    for victim in Victim:
        for harm in Harm:
            windows = [
                (began_s, ended_s + 10) for fault, began_s, ended_s in done if (fault.victim, fault.harm) == (victim, harm)
            ]
            inside = [took_s for sent_s, took_s in times if any(began <= sent_s < ended for began, ended in windows)]
            _row(table, f"{victim} {harm}", inside)
    return table


def _row(table: Table, name: str, took_s: list[float]) -> None:
    if took_s:
        ordered = sorted(took_s)
        p99 = ordered[int(0.99 * (len(ordered) - 1))]
        table.add_row(name, f"{len(ordered):,}", f"{median(ordered):.2f}", f"{p99:.2f}", f"{ordered[-1]:.2f}")


def _numbers(*numbers: int) -> Iterable[str]:
    return (f"{number:,}" for number in numbers)
