"""Faults in every part, alone and in pairs, under 50 devices that come and go and a backend, with an account: `make faults`.

Beside them are three busy clients (trials/faults/plan/busy.py), which get some hundred messages a second, bursts at QoS 2, or
stop reading at times, with the queue limits of the product.

    python -m trials.faults.run --minutes 60 --seed 7
    python -m trials.faults.run --minutes 30 --kinds "killed; frozen; frozen, then killed" --testbed local
    python -m trials.faults.run --minutes 10 --testbed routing
    python -m trials.faults.run --minutes 10 --testbed standby

1. Traffic, and incidents as planned (trials/faults/plan/faults.py) until the time is over.
2. Calm: no faults, no new messages; the devices come back and stay until everything in flight is finished.
3. The devices leave, some with DISCONNECT; the sessions that can end do.
4. The topic of the messages is deleted and made anew: the engine stops and says so, because it would skip records.
5. The account (trials/faults/account/account.py), the tables, and the history of each violation.

All files are in one directory, which is kept after violations. `--judge` repeats the account on it, with the present code:

    python -m trials.faults.run --judge DIRECTORY
"""

import argparse
import asyncio
import contextlib
import lzma
import pickle
import shutil
import sys
import tempfile
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from rich.console import Console

from trials.faults import report
from trials.faults.account import account
from trials.faults.account.account_of_busy import MAXLEN
from trials.faults.account.account_of_presence import online
from trials.faults.account.account_of_routing import arrived, owed, owed_to_group, publications
from trials.faults.account.account_of_scheduling import NEVER_SENT
from trials.faults.account.account_of_sessions import WITHIN_S
from trials.faults.account.facts import FROM_DEVICE, End, Facts, Step, Violation
from trials.faults.account.recovery import LATE_S
from trials.faults.devices.backend import Backend
from trials.faults.devices.bridged import DeviceBehindBroker
from trials.faults.devices.busy import BusyBackend, DeafDevice
from trials.faults.devices.campaigns import Campaigns
from trials.faults.devices.device import Device, Signals
from trials.faults.devices.talking_device import TalkingDevice
from trials.faults.display import AnyDevice, Display, Progress
from trials.faults.log_reader import LogReader
from trials.faults.plan.busy import BUSY, BUSY_CLIENTS
from trials.faults.plan.characters import Keeping, characters
from trials.faults.plan.faults import Incident, Kind, incidents
from trials.faults.testbed.busy_loops import busy_loops
from trials.faults.testbed.fault_injector import FaultInjector
from trials.faults.testbed.micro_batches import MicroBatches
from trials.faults.testbed.shape import Shape
from trials.faults.testbed.testbed import Testbed

FACTS = "facts.xz"
_STALLED_S = 180.0
_WARM_UP_S = 60.0
_PATIENCE_S = 20.0
"""Seconds between two incidents, so that most begin when all is well; faults in the middle of a recovery are the pairs."""
_LOOKED_AT_S = 60.0
_WIDTH = 140
"""The width of tables in a file."""
_FEW = 5
"""Messages that wait for a device that has left by itself."""
_LOOK_S = 0.5
_LONG_LOOK_S = 2.0
_ROUTES = 30
"""Publications whose way is written to the directory."""
_OF_SHAPE: dict[Shape, dict[str, Any]] = {Shape.ROUTING: {"devices": 100, "down_per_s": 4.0, "up_per_s": 8.0}}
"""A publication reaches about ten devices."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """seconds: of faults and traffic; what comes before and after takes one or two minutes. faults: enough of them end the run,
    too. Rates: of all devices together. busy_loops: run beside everything, from the first device to the last.
    """

    seed: int
    seconds: float
    faults: int | None = None
    kinds: frozenset[Kind] = frozenset(Kind)
    shape: Shape = Shape.LOCAL
    devices: int = 50
    down_per_s: float = 20.0
    up_per_s: float = 20.0
    busy_loops: int = 0


@dataclass(kw_only=True)
class Result:
    facts: Facts
    violations: list[Violation]
    reader: LogReader


async def run(settings: Settings, directory: Path, console: Console) -> Result:
    """Executes steps 1 to 5 without the tables. Raises AssertionError when there is no progress for minutes."""
    testbed = Testbed(directory, settings.shape)
    kinds = settings.kinds - testbed.impossible.keys()
    for kind in settings.kinds & testbed.impossible.keys():
        console.print(f"left out: {kind}, because {testbed.impossible[kind]}")
    injector, batches = FaultInjector(testbed), MicroBatches(testbed.engine_dir)
    async with testbed.running():
        with LogReader(testbed.bootstrap_servers) as reader:
            signals = Signals()
            devices = _devices(settings, testbed, signals)
            names = [device.facts.client_id for device in devices]
            busy = _busy_devices(settings, testbed, signals)
            devices = [*devices, *busy.values()]
            backend = Backend(testbed.bootstrap_servers, names, seed=settings.seed, rate_per_s=settings.down_per_s)
            busy_backend = BusyBackend(
                testbed.bootstrap_servers,
                [client for client in BUSY_CLIENTS if client.client_id in busy],
                lambda client_id: any(attempt.accepted_s is not None for attempt in busy[client_id].facts.attempts),
                seed=settings.seed,
            )
            campaigns = Campaigns(testbed.bootstrap_servers, names, directory / "campaigns", seed=settings.seed)
            running = [asyncio.create_task(device.run()) for device in devices]
            watching = asyncio.create_task(batches.watch())
            progress = Progress(
                devices=devices, backend=backend, busy=busy_backend, campaigns=campaigns, reader=reader, injector=injector
            )
            try:
                with busy_loops(settings.busy_loops), Display(progress, settings.seconds, console):
                    planned = incidents(settings.seed, settings.shape.victims, kinds)
                    await _Run(settings, injector, progress, signals).steps(running, planned)
                refusal = await testbed.until_engine_refuses_a_new_topic()  # 4
                console.print(f"a topic made anew stops the engine: {refusal}", markup=False)
            finally:
                batches.look()
                signals.leave.set()
                for task in (*running, watching):
                    task.cancel()
                backend.close()
                busy_backend.close()
    facts = Facts(
        devices=[device.facts for device in devices],
        sent=progress.sent,
        uplink=reader.uplink(),
        receipts=reader.receipts(),
        sessions=reader.sessions(),
        connections=reader.connections(),
        refused=reader.refused(),
        refusals=reader.refusals(),
        ended_ids=reader.ended_ids(),
        outages=injector.outages,
        standstills=batches.standstills(),
        suffered=injector.suffered,
        takeovers=injector.takeovers,
        presence=reader.presence(),
        campaigns=[begun.facts(reader.campaigns, reader.copies(begun.campaign_id)) for begun in campaigns.begun],
    )
    return Result(facts=facts, violations=account.violations(facts), reader=reader)


def _devices(settings: Settings, testbed: Testbed, signals: Signals) -> Sequence[AnyDevice]:
    more: dict[str, Any] = {"seed": settings.seed, "publish_every_s": settings.devices / settings.up_per_s}
    people = characters(settings.seed, settings.devices)
    if settings.shape is not Shape.BRIDGE:
        kind = TalkingDevice if settings.shape is Shape.ROUTING else Device
        return [kind(character, testbed.addresses, signals, **more) for character in people]
    (address,) = testbed.addresses.values()
    # Only the broker knows how a session of its own ends; those behind the bridges are kept.
    kept = [replace(character, client_id=f"kept-{n}", keeping=Keeping.KEPT) for n, character in enumerate(people)]
    return [DeviceBehindBroker(character, address, signals, **more) for character in kept]


def _busy_devices(settings: Settings, testbed: Testbed, signals: Signals) -> Mapping[str, Device]:
    """Returns the devices of busy clients, by client id."""
    more: dict[str, Any] = {"seed": settings.seed, "publish_every_s": settings.devices / settings.up_per_s}
    return {
        client.client_id: (DeafDevice if client.is_deaf else Device)(client.character, testbed.addresses, signals, **more)
        for client in (BUSY_CLIENTS if settings.shape.has_busy_clients else ())
    }


class _Run:
    def __init__(self, settings: Settings, injector: FaultInjector, progress: Progress, signals: Signals) -> None:
        self._settings = settings
        self._injector = injector
        self._progress = progress
        self._devices = progress.devices
        self._backend = progress.backend
        self._reader = progress.reader
        self._signals = signals

    async def steps(self, running: Sequence["asyncio.Task[None]"], planned: Iterator[Incident]) -> None:
        """running: the devices."""
        self._running = asyncio.gather(*running)
        self._progress.phase = "traffic"
        await self._traffic(planned)  # 1
        self._progress.phase = "calm"
        self._signals.calm.set()
        await self._until_settled()  # 2
        self._progress.phase = "leaving"
        self._signals.leave.set()
        await self._running
        await self._until_ended()  # 3

    async def _traffic(self, planned: Iterator[Incident]) -> None:
        stop = asyncio.Event()
        sending = asyncio.gather(self._backend.run(stop), self._progress.busy.run(stop))
        campaigning = asyncio.create_task(self._progress.campaigns.run(stop))
        injecting = asyncio.create_task(self._inject(planned))
        try:
            # Any failed task ends the run at once; devices and backend continue until the last incident is over.
            everything = {sending, campaigning, self._running, injecting}
            while not injecting.done() and not any(task.done() for task in everything):
                await asyncio.wait(everything, return_when=FIRST_COMPLETED)
            for task in everything:
                if task.done():
                    task.result()
        finally:
            injecting.cancel()
            stop.set()
        await sending
        with contextlib.suppress(TimeoutError):  # the account says that it is not complete
            await asyncio.wait_for(campaigning, _STALLED_S)

    async def _inject(self, planned: Iterator[Incident]) -> None:
        """Injects one incident after the other, until the time is over or there were enough of them."""
        until_s = time.monotonic() + self._settings.seconds
        most = self._settings.faults
        await self._until_messages_flow(_WARM_UP_S)
        for incident in planned:
            if time.monotonic() > until_s or (most is not None and len(self._injector.suffered) >= most):
                return
            self._progress.incident = " and ".join(map(str, incident.faults))
            await self._injector.inject(incident)
            await self._until_messages_flow(_PATIENCE_S)
            await asyncio.sleep(incident.rest_s)

    async def _until_messages_flow(self, within_s: float) -> None:
        """Waits until few of the last minute's messages to kept sessions are late and a standby waits, or the time is over."""
        kept = {
            device.facts.client_id: device.facts for device in self._devices if device.facts.character.keeping is Keeping.KEPT
        }

        def waiting() -> int:
            now_s = time.time()
            recent = takewhile(lambda sent: sent.sent_s > now_s - _LOOKED_AT_S, reversed(self._backend.sent))
            late = [sent for sent in recent if sent.client_id in kept and sent.sent_s < now_s - LATE_S and sent.comes_at_once]
            return sum(sent.payload not in kept[sent.client_id].first_s for sent in late)

        until_s = time.monotonic() + within_s
        await asyncio.sleep(LATE_S)
        while (waiting() > _FEW or not self._injector.is_complete) and time.monotonic() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    async def _until_settled(self) -> None:
        """Waits until all messages for kept sessions have arrived and every exchange is finished. What was replaced or taken back
        need not arrive."""

        def left() -> int:
            kept = [device for device in self._devices if device.facts.character.keeping is Keeping.KEPT]
            arrived = {device.facts.client_id: device.facts.handed for device in kept}
            sent = (message for message in self._progress.sent if message.client_id in arrived)
            missing = [message for message in sent if message.payload not in arrived[message.client_id]]
            if any(message.key or message.is_cancelled or message.client_id.startswith(BUSY) for message in missing):
                # What was dropped does not arrive either; whether it might be dropped is the account's to say.
                never = {receipt.message_id for receipt in self._reader.receipts() if receipt.outcome in (*NEVER_SENT, MAXLEN)}
                missing = [message for message in missing if message.message_id not in never]
            return len(missing) + sum(not device.is_idle or not device.is_connected for device in self._devices)

        await self._until_nothing(left, lambda: f"{left()} messages or devices are not finished")
        await self._until_routed()
        await self._until_online()

    async def _until_online(self) -> None:
        """Waits until presence says that all devices are connected, but not for ever: the account says what is wrong."""
        names = {device.facts.client_id for device in self._devices if device.facts.attempts}
        settled_s = time.time()
        while names - online(self._reader.presence()) and time.time() < settled_s + 2 * WITHIN_S:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    async def _until_routed(self) -> None:
        """Waits until the devices have what others published for them, but not for ever: the account says what is missing."""
        devices = [device.facts for device in self._devices if device.facts.periods]
        settled_s = time.time()
        while devices and self._reader.caught_up_s < settled_s + 1 and time.time() < settled_s + WITHIN_S:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        known = publications(Facts(devices=[device.facts for device in self._devices], uplink=self._reader.uplink()))
        due = [(device, await asyncio.to_thread(owed, device, known.values())) for device in devices]
        of_group = owed_to_group(devices, known.values())

        def is_missing() -> bool:
            if any(payloads - arrived(device) for device, payloads in due):
                return True
            left = of_group - {arrival.payload for device in devices for arrival in device.routed}
            return any(not known[payload].ids & self._reader.ended_ids() for payload in left)

        while is_missing() and time.time() < settled_s + _STALLED_S:  # noqa: ASYNC110
            await asyncio.sleep(_LONG_LOOK_S)

    async def _until_ended(self) -> None:
        """Waits until every message has its receipt, every session that can end has ended, every will is published, and
        nobody is online."""
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
            present = len(online(self._reader.presence()))
            return sum(sent.message_id not in receipts for sent in self._progress.sent) + sessions + late + present

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--faults", type=int, help="end the run when there were so many")
    parser.add_argument("--seed", type=int, help="default: the time")
    parser.add_argument("--kinds", type=_kinds, default=frozenset(Kind), help=f"some of: {'; '.join(Kind)}")
    parser.add_argument("--testbed", type=Shape, choices=Shape, default=Shape.LOCAL)
    parser.add_argument("--devices", type=int, help="default: 50, with routing 100")
    parser.add_argument("--busy-loops", type=int, default=0, help="so many run beside everything")
    parser.add_argument("--keep", action="store_true", help="keep the directory also when all is well")
    parser.add_argument("--judge", type=Path, metavar="DIRECTORY", help="of a run that was kept; nothing else is done")
    arguments = parser.parse_args()
    if arguments.judge is not None:
        return judge(arguments.judge)
    of_shape = _OF_SHAPE.get(arguments.testbed, {}) | ({"devices": arguments.devices} if arguments.devices else {})
    settings = Settings(
        seed=int(time.time()) if arguments.seed is None else arguments.seed,
        seconds=60 * arguments.minutes,
        faults=arguments.faults,
        kinds=arguments.kinds,
        shape=arguments.testbed,
        busy_loops=arguments.busy_loops,
        **of_shape,
    )
    console = Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH)
    directory = Path(tempfile.mkdtemp(prefix="inflight-faults-"))
    console.print(f"seed {settings.seed}, {arguments.minutes:g} minutes, {directory}")
    result = asyncio.run(run(settings, directory, console))
    report.show(result.facts, result.violations, result.reader, console)
    if result.violations or arguments.keep:
        keep(result, directory)
        console.print(f"Logs and data are in {directory}. The same faults again: SEED={settings.seed}")
    else:
        shutil.rmtree(directory)
    return 1 if result.violations else 0


def judge(directory: Path) -> int:
    """Judges a run that was kept by the account of today."""
    facts: Facts = pickle.loads(lzma.decompress((directory / FACTS).read_bytes()))
    violations = account.violations(facts)
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations")
    return 1 if violations else 0


def keep(result: Result, directory: Path) -> None:
    """Writes the facts, the violations, and all records of the clients concerned: Kafka's log goes with its small disk."""
    (directory / FACTS).write_bytes(lzma.compress(pickle.dumps(result.facts)))
    (directory / "violations.txt").write_text("".join(f"{violation}\n" for violation in result.violations))
    for number, violation in enumerate(result.violations[:_ROUTES]):
        if violation.of.startswith(FROM_DEVICE):
            lines = [str(violation), *report.history(result.facts, violation, result.reader)]
            (directory / f"route-{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    for client_id in {violation.client_id for violation in result.violations}:
        (directory / f"history-{client_id}.txt").write_text("".join(f"{line}\n" for line in result.reader.history(client_id)))


def _kinds(text: str) -> frozenset[Kind]:
    """Reads kinds whose names are separated by semicolons. Raises ValueError."""
    return frozenset(Kind(name.strip()) for name in text.split(";") if name.strip())


if __name__ == "__main__":
    sys.exit(main())
