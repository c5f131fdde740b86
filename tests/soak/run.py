"""Random kills and freezes of two gateways, the engine and Kafka under 50 devices that come and go: `make soak-kills`.

    python -m tests.soak.run --minutes 30 --seed 7

1. Traffic, and faults as planned (tests/soak/schedule.py).
2. Calm: no faults, nothing new is sent; the devices come back and stay, until nothing is under way any more.
3. The devices leave, some with a goodbye; the sessions that can end do.
4. The account (tests/soak/account.py), the tables, and the history of what must not have happened.

Everything is in a directory of its own, which is kept when something was wrong.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from asyncio import FIRST_EXCEPTION
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.soak import account, report
from tests.soak.account_of_sessions import WITHIN_S
from tests.soak.backend import Backend
from tests.soak.device import Device, Signals
from tests.soak.facts import End, Facts, Step, Violation
from tests.soak.log_reader import LogReader
from tests.soak.plant import Plant
from tests.soak.schedule import Fault, Keeping, Victim, characters, faults

_STALLED_S = 180.0
_LOOK_S = 0.5
_LONG_LOOK_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """seconds: of faults and traffic; what comes before and after takes one or two minutes. Rates: of all devices together."""

    seed: int
    seconds: float
    devices: int = 50
    down_per_s: float = 20.0
    up_per_s: float = 20.0


@dataclass(kw_only=True)
class Result:
    facts: Facts
    violations: list[Violation]
    plant: Plant
    reader: LogReader


async def soak(settings: Settings, directory: Path, console: Console) -> Result:
    """Steps 1 to 4 without the tables. Raises AssertionError when something stands still for three minutes."""
    plant = Plant(directory)
    people = characters(settings.seed, settings.devices)
    async with plant.running():
        with LogReader(plant.up.kafka) as reader:
            signals = Signals()
            every_s = settings.devices / settings.up_per_s
            devices = [
                Device(character, plant.addresses, signals, seed=settings.seed, publish_every_s=every_s) for character in people
            ]
            names = [device.facts.client_id for device in devices]
            backend = Backend(plant.up.kafka, names, seed=settings.seed, rate_per_s=settings.down_per_s)
            running = [asyncio.create_task(device.run()) for device in devices]
            try:
                with _Display(settings, devices, backend, reader, plant, console) as display:
                    await _Run(settings, plant, devices, backend, reader, signals, display).steps(running)
            finally:
                signals.leave.set()
                for task in running:
                    task.cancel()
                backend.close()
    facts = Facts(
        devices=[device.facts for device in devices],
        sent=backend.sent,
        uplink=reader.uplink(),
        receipts=reader.receipts(),
        sessions=reader.sessions(),
        connections=reader.connections(),
        outages=plant.outages,
    )
    return Result(facts=facts, violations=account.violations(facts), plant=plant, reader=reader)


class _Run:
    def __init__(
        self,
        settings: Settings,
        plant: Plant,
        devices: list[Device],
        backend: Backend,
        reader: LogReader,
        signals: Signals,
        display: "_Display",
    ) -> None:
        self._settings = settings
        self._plant = plant
        self._devices = devices
        self._backend = backend
        self._reader = reader
        self._signals = signals
        self._display = display

    async def steps(self, running: list["asyncio.Task[None]"]) -> None:
        """running: the devices."""
        self._running = asyncio.gather(*running)
        self._display.phase = "traffic"
        await self._traffic()  # 1
        self._display.phase = "calm"
        self._signals.calm.set()
        await self._until_settled()  # 2
        self._display.phase = "leaving"
        self._signals.leave.set()
        await self._running
        await self._until_ended()  # 3

    async def _traffic(self) -> None:
        stop = asyncio.Event()
        sending = asyncio.create_task(self._backend.run(stop))
        until_s = time.monotonic() + self._settings.seconds
        planned = faults(self._settings.seed, self._settings.seconds)
        injecting = [
            asyncio.create_task(self._inject([fault for fault in planned if fault.victim is victim], until_s))
            for victim in Victim
        ]
        try:
            # Whoever fails ends the run at once; nobody else is done before the time is over.
            await asyncio.wait({sending, self._running, *injecting}, timeout=self._settings.seconds, return_when=FIRST_EXCEPTION)
            for task in (sending, self._running, *injecting):
                if task.done():
                    task.result()
        finally:
            stop.set()
        await sending
        await asyncio.gather(*injecting)

    async def _inject(self, planned: list[Fault], until_s: float) -> None:
        """The faults of one victim, each at its time or when the victim has got over the one before; none too late."""
        for fault in planned:
            at_s = until_s - self._settings.seconds + fault.at_s
            await asyncio.sleep(max(0.0, at_s - time.monotonic()))
            if time.monotonic() + fault.frozen_s > until_s + 1:
                return
            self._display.last_fault = str(fault)
            await self._plant.harm(fault)

    async def _until_settled(self) -> None:
        """What is kept arrives, and every exchange is finished."""

        def left() -> int:
            kept = [device for device in self._devices if device.facts.character.keeping is Keeping.KEPT]
            arrived = {payload for device in kept for payload in device.facts.handed}
            names = {device.facts.client_id for device in kept}
            missing = sum(1 for sent in self._backend.sent if sent.client_id in names and sent.message_id.encode() not in arrived)
            return missing + sum(not device.session.is_idle or not device.connected for device in self._devices)

        await self._until_nothing(left, lambda: f"{left()} messages or devices are not finished")

    async def _until_ended(self) -> None:
        """Every message has its receipt, every session that can end has ended, every will is there."""
        wills = {attempt.will for device in self._devices for attempt in device.facts.attempts if attempt.end is not End.GOODBYE}
        ending = {device.facts.client_id for device in self._devices if device.facts.character.keeping is not Keeping.KEPT}
        left_s = time.time()

        def left() -> int:
            receipts = {outcome.message_id for outcome in self._reader.receipts() if outcome.final}
            last = {row.client_id: row.step for row in self._reader.sessions()}
            published = {record.payload for record in self._reader.uplink()}
            sessions = sum(last.get(client_id, Step.SESSION_ENDED) is not Step.SESSION_ENDED for client_id in ending)
            late = sum(
                connection.will in wills and connection.will not in published and connection.next_s is None
                for connection in self._reader.connections()
            )
            return sum(sent.message_id not in receipts for sent in self._backend.sent) + sessions + late

        # What is missing is the account's to say, so the time is bounded and its end no error.
        while (left() or self._reader.caught_up_s < left_s + 1) and time.time() < left_s + 2 * WITHIN_S:  # noqa: ASYNC110
            await asyncio.sleep(_LONG_LOOK_S)

    async def _until_nothing(self, left: Callable[[], int], what: Callable[[], str]) -> None:
        """Raises AssertionError when it does not become less for three minutes."""
        least, changed_s = left(), time.monotonic()
        while least:
            await asyncio.sleep(_LOOK_S)
            now = left()
            if now < least:
                least, changed_s = now, time.monotonic()
            assert time.monotonic() < changed_s + _STALLED_S, what()
            assert self._reader.is_alive, "the thread that reads the log has failed"
            assert not self._running.done(), "a device has failed"


class _Display:
    """The progress line."""

    def __init__(
        self, settings: Settings, devices: list[Device], backend: Backend, reader: LogReader, plant: Plant, console: Console
    ) -> None:
        self.phase = ""
        self.last_fault = "no fault yet"
        self._settings, self._devices, self._backend = settings, devices, backend
        self._reader, self._plant = reader, plant
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn(), console=console, refresh_per_second=2
        )

    def __enter__(self) -> "_Display":
        self._task = self._progress.add_task("", total=self._settings.seconds)
        self._progress.start()
        self._began = time.monotonic()
        self._updating = asyncio.create_task(self._update())
        return self

    def __exit__(self, *_: object) -> None:
        self._updating.cancel()
        self._progress.stop()

    async def _update(self) -> None:
        while True:
            facts = [device.facts for device in self._devices]
            arrived = sum(len(device.handed) for device in facts)
            published = sum(len(device.publications) for device in facts)
            connected = sum(device.connected for device in self._devices)
            odd = sum(len(device.oddities) for device in facts)
            text = (
                f"{self.phase}: {connected} connected, down {arrived}/{len(self._backend.sent)}, "
                f"up {len(self._reader.records['uplink'])}/{published}, {len(self._plant.done)} faults"
                + (f", {odd} odd" if odd else "")
                + f"; {self.last_fault}"
            )
            completed = min(time.monotonic() - self._began, self._settings.seconds)
            self._progress.update(self._task, completed=completed, description=text)
            await asyncio.sleep(_LOOK_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--keep", action="store_true", help="keep the directory also when all is well")
    arguments = parser.parse_args()
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    settings = Settings(seed=seed, seconds=60 * arguments.minutes, devices=arguments.devices)
    console = Console(stderr=True)
    directory = Path(tempfile.mkdtemp(prefix="inflight-soak-"))
    console.print(f"seed {seed}, {arguments.minutes:g} minutes, {directory}")
    result = asyncio.run(soak(settings, directory, console))
    report.show(result.facts, result.plant.done, result.violations, result.reader, console)
    if result.violations or arguments.keep:
        console.print(
            f"Logs and data are in {directory}. Again: python -m tests.soak.run --minutes {arguments.minutes:g} --seed {seed}"
        )
    else:
        shutil.rmtree(directory)
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
