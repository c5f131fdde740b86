"""`make demo-bridge`: the same faults with a broker alone and with Inflight behind it, and both counts side by side.

1. the broker alone: a plain MQTT publisher, kept sessions, QoS 1;
2. `inflight up` and two bridges; the same broker, the same devices, the same script (inflight/demo/bridge_trial.py);
3. the devices' own counts, compared. Nothing lost and nothing twice at QoS 2 with Inflight, or the exit code is 1.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from inflight.demo.bridge_broker import find_mosquitto
from inflight.demo.bridge_devices import BridgedDevice
from inflight.demo.bridge_trial import (
    UP_OPTIONS,
    WINDOW,
    TrialPlan,
    TrialResult,
    Watch,
    run_broker_alone,
    run_with_inflight,
)
from inflight.demo.up import UpProcess

_REFRESH_S: Final = 0.25


def run_bridge_demo(data_dir: Path, console: Console, plan: TrialPlan | None = None) -> int:
    """Runs all steps; prints the result with its last line as JSON on standard output. Returns the exit code.

    Raises MissingPrerequisite before anything is started.
    """
    find_mosquitto()
    plan = plan or TrialPlan()
    console.print(
        f"[bold]Inflight's bridge[/bold]: {plan.devices} devices behind Mosquitto, {plan.total:,} messages. On the way Mosquitto "
        "is restarted, killed and frozen, devices are switched off, lose their line and forget acknowledgements."
    )
    console.print("First without Inflight: QoS 1, kept sessions, a publisher that repeats what the broker has not confirmed.")
    alone = _watched(console, "the broker alone", plan, lambda watch: run_broker_alone(plan, data_dir, watch))
    console.print("Now with Inflight: Kafka and the engine, and two bridges, each of which is killed once, too.")
    with UpProcess(data_dir / "inflight", *UP_OPTIONS, quiet=False) as up:
        bridged = _watched(console, "with Inflight", plan, lambda watch: run_with_inflight(plan, data_dir, watch, up))
    console.print(comparison(alone, bridged))
    console.print("Every number above but the receipts was counted by the devices.")
    print(json.dumps(summary(alone, bridged)), flush=True)  # noqa: T201 - the result is what this program is for
    return 0 if is_flawless(bridged) else 1


def is_flawless(result: TrialResult) -> bool:
    """Nothing lost, nothing processed twice at QoS 2, the window kept, and the receipts say so."""
    return (
        result.lost == 0
        and result.twice_at_qos2 == 0
        and result.unproven == 0
        and result.receipts == {"delivered": result.sent}
        and result.most_unacknowledged <= WINDOW
    )


def summary(alone: TrialResult, bridged: TrialResult) -> dict[str, object]:
    """For machines; docs/bridge.md quotes it."""
    counted = ("sent", "delivered", "lost", "twice_at_qos2", "copies", "most_unacknowledged")
    return {
        name: {key: getattr(result, key) for key in counted}
        | {"receipts": dict(result.receipts), "seconds": round(result.seconds, 1)}
        for name, result in (("broker_alone", alone), ("with_inflight", bridged))
    }


def comparison(alone: TrialResult, bridged: TrialResult) -> Table:
    table = Table("", "the broker alone", "with Inflight", title="What the devices saw")
    rows: list[tuple[str, Callable[[TrialResult], object]]] = [
        ("messages sent", lambda result: f"{result.sent:,}"),
        ("received", lambda result: f"{result.delivered:,}"),
        ("[bold]lost[/bold]", lambda result: f"[bold]{result.lost:,}[/bold]"),
        ("acted on twice at QoS 2", lambda result: "none was sent" if result is alone else result.twice_at_qos2),
        ("copies that were recognised", lambda result: result.copies),
        (f"most unacknowledged at one device (window {WINDOW})", lambda result: result.most_unacknowledged),
        ("receipts for the backend", lambda result: ", ".join(f"{n:,} {o}" for o, n in result.receipts.items()) or "none"),
    ]
    for name, show in rows:
        table.add_row(name, str(show(alone)), str(show(bridged)))
    return table


def _watched(console: Console, title: str, plan: TrialPlan, run: Callable[[Watch], TrialResult]) -> TrialResult:
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        last = 0.0

        def watch(happening: str, devices: Sequence[BridgedDevice], sent: int) -> None:
            nonlocal last
            if time.monotonic() - last > _REFRESH_S:
                last = time.monotonic()
                live.update(_view(f"{title}: {happening}", devices, sent, plan.total))

        return run(watch)


def _view(title: str, devices: Sequence[BridgedDevice], sent: int, total: int) -> Table:
    arrived = sum(len(device.copies) for device in devices)
    table = Table("devices connected", "sent", "arrived", "", title=title)
    table.add_row(
        f"{sum(device.connected.is_set() for device in devices)}/{len(devices)}",
        f"{sent}/{total}",
        str(arrived),
        ProgressBar(total=total, completed=arrived, width=30),
    )
    return table
