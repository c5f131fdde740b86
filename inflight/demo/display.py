"""Shows a live table while the demo runs, and a result table at the end."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from inflight.demo.backend import Reader
from inflight.demo.devices import Device, Manners
from inflight.demo.scoreboard import Plans, Score, by_manners, score
from streaming.engine.progress import last_progress
from streaming.terminal import plain


def live_view(devices: Iterable[Device], plans: Plans, reader: Reader, data_dir: Path, *, phase: str) -> Group:
    """The present state: devices by manners, the engine's last micro-batch, the ledger's counts."""
    listed = list(devices)
    table = Table("devices", "connected", "arrived", "", "again", "in window", "in queue", title=f"Inflight: {phase}")
    for manners in Manners:
        group = [device for device in listed if device.manners is manners]
        counts = score(group, *plans)
        table.add_row(
            f"{len(group)} × {manners}",
            str(sum(device.connected.is_set() for device in group)),
            f"{counts.delivered}/{counts.sent}",
            ProgressBar(total=max(1, counts.sent), completed=counts.delivered, width=24),
            str(counts.redelivered + counts.qos2_duplicates),
            str(sum(len(reader.window.get(device.name, ())) for device in group)),
            str(sum(len(reader.queue.get(device.name, ())) for device in group)),
        )
    seen = reader.transitions
    resends = seen["resent"] + seen["replayed"]
    lines = [f"ledger: {seen['sent']} sent, {resends} resent or replayed, {seen['pubrec']} PUBREC, {seen['finished']} finished"]
    batch = last_progress(data_dir)
    if batch is not None:
        lines.append(f"engine: micro-batch {batch.batch_id}, {batch.duration_ms} ms, {batch.rows} records")
    return Group(table, plain("\n".join(lines), "dim"))


def result_table(devices: Iterable[Device], plans: Plans) -> Table:
    listed = list(devices)
    columns = ("devices", "sent", "delivered", "lost", "redelivered (QoS 0, 1)", "twice at QoS 2")
    table = Table(*columns, title="What the devices saw")
    for manners, counts in by_manners(listed, plans.backend).items():
        table.add_row(*_cells(f"{counts.devices} × {manners}", counts))
    table.add_section()
    listeners = [device for device in listed if device.topic_filters]
    table.add_row(*_cells("from another device", score(listeners, plans.peers)))
    table.add_row(*_cells("from a device to all", score(listeners, plans.fleet)))
    table.add_section()
    table.add_row(*_cells(f"{len(listed)} devices", score(listed, *plans)), style="bold")
    return table


def _cells(name: str, counts: Score) -> list[str]:
    numbers = (counts.sent, counts.delivered, counts.lost, counts.redelivered, counts.qos2_duplicates)
    return [name, *(f"{number:,}" for number in numbers)]
