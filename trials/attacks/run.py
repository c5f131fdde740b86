"""200 good devices get 50 messages a second while one attack after the other goes on: `make attacks`.

    python -m trials.attacks.run
    python -m trials.attacks.run --seconds 5 --only bombs --only deaf

Everything is real: Kafka, engine, gateway, sockets.

1. Undisturbed: the latency to compare with.
2. Each attack, from a process of its own, and a pause until the gateway has finished the attack's work. The process has started
   before and has a low priority, because a real attacker has a machine of its own.
3. A check that everything that was sent has arrived, once.

A latency belongs to the attack during which its message was sent. All processes share the processors of this machine, so the
table has the attacker's use of them.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import Progress

from inflight.demo.up import UpProcess
from inflight.local.child_process import bound_to_parent
from inflight.local.endpoints import Endpoints
from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from tests.support.waiting import wait_until
from trials.attacks.attackers import ATTACKS, READY, Said
from trials.attacks.backend import Backend
from trials.attacks.gateway_watch import MIB, GatewayWatch, memory_allowed
from trials.attacks.good_devices import GoodDevices, client_ids
from trials.attacks.report import show
from trials.attacks.result import Phase, Result, failures

LIMITS: Final = DeviceLimits(max_connections=4_000, max_total_unconfirmed_bytes=16 * MIB, max_total_buffered_bytes=8 * MIB)
"""Limits below the defaults where the attackers here would not reach the defaults."""
_CHANGED: Final = ("max_connections", "max_total_unconfirmed_bytes", "max_total_buffered_bytes")
_NICE: Final = 10
_COPIES: Final = 2
"""librdkafka decompresses a batch, and the value of each record is a Python object."""
_READY_S: Final = 120.0
_PAUSE_S: Final = 3.0
_REST: Final = 1.25
"""A share of the processor time that the gateway takes undisturbed."""
_MOST_REST_S: Final = 20.0
_STOP_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """seconds: of each attack, and undisturbed. is_small: attackers of a short test."""

    seconds: float = 60.0
    only: tuple[str, ...] = ()
    devices: int = 200
    rate_per_s: float = 50.0
    warm_up_s: float = 30.0
    is_small: bool = False


def measure(settings: Settings, directory: Path, progress: Progress) -> Result:
    """Runs the undisturbed phase and every attack. Returns the result."""
    options = [part for key in _CHANGED for part in ("--set", f"limits.{key}={getattr(LIMITS, key)}")]
    with (
        UpProcess(directory / "data", "--set", "metrics.gateway_port=0", *options) as up,
        _gateway_watch(up.data_dir) as watch,
        GoodDevices(up.mqtt, settings.devices) as devices,
    ):
        empty_bytes = watch.usage().most_bytes
        devices.wait_until_ready(_READY_S)
        with Backend(up.kafka, client_ids(settings.devices), rate_per_s=settings.rate_per_s) as backend:
            names = settings.only or tuple(ATTACKS)
            task = progress.add_task("warming up", total=2 + len(names))
            wait_until(lambda: len(devices.arrivals) >= settings.devices, "each device has a message")
            time.sleep(settings.warm_up_s)
            watch.usage()
            phases = []
            for name in ("", *names):
                progress.update(task, advance=1, description=name or "undisturbed")
                phases.append(_phase(name, settings, up, devices, watch))
                watch.rest(_REST * phases[0].gateway.cores, _MOST_REST_S)
                watch.usage()
            backend.stop()
            with suppress(AssertionError):  # the result says what is missing
                wait_until(lambda: set(backend.sent) <= set(devices.taken), "everything arrives")
            progress.update(task, advance=1, description="done")
    return Result(
        phases=[
            replace(
                phase,
                latencies_ms=devices.latencies_ms(phase.from_s, phase.to_s),
                messages=len(devices.latencies_ms(phase.from_s, phase.ended_s)),
            )
            for phase in phases
        ],
        allowed_bytes=empty_bytes + memory_allowed(GatewaySettings(device_limits=LIMITS)),
        sent=len(backend.sent),
        twice=sum(times > 1 for times in devices.taken.values()),
        missing=len(set(backend.sent) - set(devices.taken)),
    )


def _gateway_watch(data_dir: Path) -> GatewayWatch:
    endpoints = Endpoints.read(data_dir)
    return GatewayWatch(endpoints.pids["gateway"], endpoints.metrics["gateway"])


def _phase(name: str, settings: Settings, up: UpProcess, devices: GoodDevices, watch: GatewayWatch) -> Phase:
    """name: of the attack; empty = none."""
    lost, from_s = devices.lost, time.time()
    what, said, extra_bytes = "undisturbed", Said(), 0
    if name:
        attack = ATTACKS[name]
        size = attack.small if settings.is_small else attack.size
        extra_bytes = _COPIES * size * MIB if attack.writes else 0
        what = attack.what.format(size=size, messages=attack.messages)
        from_s, said = _attack(name, size, settings.seconds, up)
    else:
        time.sleep(settings.seconds)
    to_s = time.time()
    time.sleep(_PAUSE_S)
    return Phase(
        what=what,
        from_s=from_s,
        to_s=to_s,
        ended_s=time.time(),
        lost=devices.lost - lost,
        gateway=watch.usage(),
        attacker=said,
        extra_bytes=extra_bytes,
    )


def _attack(name: str, size: int, seconds: float, up: UpProcess) -> tuple[float, Said]:
    """Runs an attack. Returns the time of its start, and the output of its process.

    The process has a session of its own, because only then `_NICE` counts beside `inflight up`.
    """
    host, port = up.mqtt
    options = ["--host", host, "--port", str(port), "--kafka", up.kafka, "--size", str(size), "--seconds", str(seconds)]
    command = bound_to_parent(["nice", "-n", str(_NICE), sys.executable, "-m", "trials.attacks.attackers", name, *options])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{READY}\n".encode(), f"the attacker {name} has not started"
        from_s = time.time()
        output, _ = process.communicate(b"go\n", timeout=seconds + _STOP_S)
    assert process.returncode == 0, f"the attacker {name} has failed"
    return from_s, msgspec.json.decode(output.splitlines()[-1], type=Said)  # behind what was logged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=Settings.seconds, help="of each attack, and undisturbed")
    parser.add_argument("--only", action="append", default=[], choices=ATTACKS, help="may be given more than once")
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds before anything is measured")
    arguments = parser.parse_args()
    settings = Settings(
        seconds=arguments.seconds, only=tuple(arguments.only), devices=arguments.devices, warm_up_s=arguments.warm_up
    )
    console = Console(stderr=True)
    console.print(f"open files of one process: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}")
    with tempfile.TemporaryDirectory(prefix="inflight-attacks-") as name, Progress(console=console) as progress:
        result = measure(settings, Path(name), progress)
    show(result, Console(stderr=True, width=max(console.width, 150)))
    for failure in failures(result):
        console.print(failure)
    return int(bool(failures(result)))


if __name__ == "__main__":
    sys.exit(main())
