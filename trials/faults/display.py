"""The progress line of a run."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich import progress
from rich.console import Console

from trials.faults.account.facts import Sent
from trials.faults.devices.backend import Backend
from trials.faults.devices.bridged import DeviceBehindBroker
from trials.faults.devices.busy import BusyBackend
from trials.faults.devices.campaigns import Campaigns
from trials.faults.devices.device import Device
from trials.faults.log_reader import LogReader
from trials.faults.testbed.fault_injector import FaultInjector

_LOOK_S = 0.5


AnyDevice = Device | DeviceBehindBroker


@dataclass(kw_only=True)
class Progress:
    """The progress of a run. phase, incident: text for the display."""

    devices: Sequence[AnyDevice]
    backend: Backend
    busy: BusyBackend
    campaigns: Campaigns
    reader: LogReader
    injector: FaultInjector
    phase: str = ""
    incident: str = "no fault yet"

    @property
    def sent(self) -> list[Sent]:
        """Returns what devices are to get: from the backends, and of campaigns."""
        return [
            *self.backend.sent,
            *self.busy.sent,
            *(sent for begun in self.campaigns.begun for sent in begun.messages(self.reader.campaigns)),
        ]

    def __str__(self) -> str:
        facts = [device.facts for device in self.devices]
        arrived = sum(len(device.handed) for device in facts)
        published = sum(len(device.publications) for device in facts)
        connected = sum(device.is_connected for device in self.devices)
        odd = sum(len(device.oddities) for device in facts)
        return (
            f"{self.phase}: {connected} connected, down {arrived}/{len(self.sent)}, {len(self.campaigns.begun)} campaigns, "
            f"up {len(self.reader.records['uplink'])}/{published}, {len(self.injector.suffered)} faults"
            + (f", {odd} odd" if odd else "")
            + f"; {self.incident}"
        )


class Display:
    """Shows the progress within its context. seconds: of traffic."""

    def __init__(self, shown: Progress, seconds: float, console: Console) -> None:
        self._shown = shown
        self._seconds = seconds
        columns = progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=20), progress.TimeElapsedColumn()
        self._bar = progress.Progress(*columns, console=console, refresh_per_second=2)

    def __enter__(self) -> "Display":
        self._task = self._bar.add_task("", total=self._seconds)
        self._bar.start()
        self._began = time.monotonic()
        self._updating = asyncio.create_task(self._update())
        return self

    def __exit__(self, *_: object) -> None:
        self._updating.cancel()
        self._bar.stop()

    async def _update(self) -> None:
        while True:
            completed = min(time.monotonic() - self._began, self._seconds)
            self._bar.update(self._task, completed=completed, description=str(self._shown))
            await asyncio.sleep(_LOOK_S)
