"""Runs public conformance suites against `inflight up`: `make conformance`.

    python -m trials.conformance.run --paho DIRECTORY --mqtt-lib DIRECTORY

Everything is real: Kafka, engine, gateway, sockets.

1. Builds the suite that is written in Rust.
2. Starts the server with the settings of inflight.toml, on free ports and with a data directory of its own, and lets it warm up.
3. Runs each test, one after the other, with a deadline. What has failed is repeated alone: the suites wait for 0.3 s only, and a
   test that fails leaves retained messages to the next one.
4. Writes a report in JSON, prints a table, and fails if a test has failed that known.toml does not explain with a clause.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from rich.console import Console
from rich.progress import Progress

from inflight.demo.up import UpProcess
from inflight.local.child_process import free_port
from trials.conformance.outcome import Outcome, Verdict, explain, read_known
from trials.conformance.report import show, write
from trials.conformance.suites import MqttLib, Paho, Suite, SuiteFailed
from trials.conformance.warm_up import warm_up

HERE: Final = Path(__file__).parent
CACHE: Final = HERE.parent.parent / ".cache" / "conformance"
PAHO: Final = ("eclipse/paho.mqtt.testing", "9d7bb80bb8b9d9cfc0b52f8cb4c1916401281103")
MQTT_LIB: Final = ("LabOverWire/mqtt-lib", "fcdebe0eb6fae7fdd3829eaae99911f81fe5fa36")
SUITES: Final = ("paho3", "paho5", "mqtt5-conformance")
Names: TypeAlias = frozenset[tuple[str, str]]
"""Tests by suite and name."""
_PROFILE: Final = "conformance"
"""The profile `release` ends the program at the first failure."""
_BUILD_S: Final = 1_800.0
_BINARY: Final = "mqtt5-conformance"


def build(mqtt_lib: Path) -> Path:
    """Builds the suite with cargo, at a low priority. Returns the program. Raises SuiteFailed."""
    target = CACHE / "target"
    command = ["cargo", "build", "--profile", _PROFILE, "--package", "mqtt5-conformance-cli"]
    try:
        built = subprocess.run(
            ["nice", *command],
            cwd=mqtt_lib,
            env={**os.environ, "CARGO_TARGET_DIR": str(target)},
            stdin=subprocess.DEVNULL,
            timeout=_BUILD_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise SuiteFailed("cargo is missing: install Rust 1.88 or newer, or choose other suites with --suite") from error
    if built.returncode:
        raise SuiteFailed(f"{' '.join(command)} has failed in {mqtt_lib}")
    return target / _PROFILE / _BINARY


def fill_in(name: str, directory: Path, old: str, new: str) -> Path:
    """Copies a file of this folder into a directory, with a text replaced. Returns the copy."""
    text = (HERE / name).read_text(encoding="utf-8")
    assert old in text, f"{name} has no {old}"
    copy = directory / name
    copy.write_text(text.replace(old, new), encoding="utf-8")
    return copy


def run(suites: Sequence[Suite], only: str, console: Console, *, attempts: int, known: Names) -> list[Outcome]:
    """Runs the tests whose name contains `only`. attempts: how often a test is run that fails, unless it is known."""
    chosen = [(suite, [test for test in suite.tests() if only in test]) for suite in suites]
    outcomes = []
    with Progress(console=console) as progress:
        task = progress.add_task("", total=sum(len(tests) for _, tests in chosen))
        for suite, tests in chosen:
            progress.update(task, description=suite.name)
            ended: dict[str, Outcome] = {}
            for outcome in suite.run(tests):
                ended[outcome.test] = outcome
                progress.update(task, advance=1)
                _tell(outcome, progress)
            for attempt in range(2, attempts + 1):
                failed = [test for test, outcome in ended.items() if outcome.verdict is Verdict.FAILED]
                for test in (test for test in failed if (suite.name, test) not in known):
                    (outcome,) = suite.run([test])
                    ended[test] = msgspec.structs.replace(outcome, attempts=attempt)
                    _tell(ended[test], progress)
            outcomes += ended.values()
    return outcomes


def _tell(outcome: Outcome, progress: Progress) -> None:
    color = "green" if outcome.verdict is Verdict.PASSED else "red"
    again = f", attempt {outcome.attempts}" if outcome.attempts > 1 else ""
    progress.print(f"[{color}]{outcome.verdict}[/] {outcome.suite} {outcome.test}, {outcome.seconds:.1f} s{again}")


def checkout(directory: Path | None, source: tuple[str, str], option: str, variable: str) -> Path:
    """Returns the directory of a suite. Raises SuiteFailed, which says where to get it."""
    repository, commit = source
    if directory is not None and directory.is_dir():
        return directory.resolve()
    name = repository.rpartition("/")[2]
    raise SuiteFailed(
        f"{option} ({variable} of make) needs a checkout of {repository}"
        + (f", and {directory} is no directory" if directory else "")
        + f". Get it with:\n  git clone https://github.com/{repository} && git -C {name} checkout {commit}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paho", type=Path, help=f"checkout of {PAHO[0]}")
    parser.add_argument("--mqtt-lib", type=Path, help=f"checkout of {MQTT_LIB[0]}")
    parser.add_argument("--suite", action="append", default=[], choices=SUITES, help="may be given more than once; default: all")
    parser.add_argument("--only", default="", help="only tests whose name contains this")
    parser.add_argument("--attempts", type=int, default=3, help="of a test that fails; default: %(default)s")
    parser.add_argument("--report", type=Path, default=CACHE / "report.json", help="default: %(default)s")
    parser.add_argument("--data-dir", type=Path, help="keep data and logs of the server here; default: a temporary directory")
    arguments = parser.parse_args()
    console, known = Console(stderr=True), read_known(HERE / "known.toml")
    try:
        outcomes = _run(arguments, console, frozenset((one.suite, one.test) for one in known))
    except SuiteFailed as error:
        console.print(str(error), style="bold red", markup=False, soft_wrap=True)
        return 2
    outcomes = explain(outcomes, known)
    write(outcomes, arguments.report)
    show(outcomes, Console(width=max(console.width, 200)))
    console.print(f"report: {arguments.report}")
    return int(any(outcome.needs_explanation for outcome in outcomes))


def _run(arguments: argparse.Namespace, console: Console, known: Names) -> list[Outcome]:
    names = arguments.suite or SUITES
    paho = binary = Path()
    if {"paho3", "paho5"} & {*names}:
        paho = checkout(arguments.paho, PAHO, "--paho", "PAHO_TESTING")
    if "mqtt5-conformance" in names:
        binary = build(checkout(arguments.mqtt_lib, MQTT_LIB, "--mqtt-lib", "MQTT_LIB"))
    with tempfile.TemporaryDirectory(prefix="inflight-conformance-") as temporary:
        directory = Path(temporary)
        websocket_port = free_port()
        config = fill_in("inflight.toml", directory, "port = 0", f"port = {websocket_port}")
        console.print("starting the server")
        with UpProcess(arguments.data_dir or directory / "data", "--config", str(config)) as up:
            host, port = up.mqtt
            description = fill_in("server.toml", directory, "{mqtt}", f"{host}:{port}")
            description.write_text(description.read_text().replace("{websocket}", f"{host}:{websocket_port}"), encoding="utf-8")
            suites: dict[str, Suite] = {
                "paho3": Paho("paho3", paho, "client_test.py", up.mqtt),
                "paho5": Paho("paho5", paho, "client_test5.py", up.mqtt),
                "mqtt5-conformance": MqttLib(binary, description),
            }
            console.print(f"warmed up: a kept session connects within {warm_up(up.mqtt):.0f} ms")
            chosen = [suites[name] for name in SUITES if name in names]
            return run(chosen, arguments.only, console, attempts=arguments.attempts, known=known)


if __name__ == "__main__":
    sys.exit(main())
