"""`python -m inflight.local.health_check`: the HEALTHCHECK of the image, which ends with 0 if what process 1 runs is alive.

It reads the command line of process 1 and its configuration, and asks `/healthz` of each process. A command without a port for
probes, such as `inflight topics`, counts as healthy: while it runs, nothing is known against it.
"""

import argparse
import http.client
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inflight.local.endpoints import Endpoints
from state.errors import InflightError
from streaming.config.settings import Settings, load_settings
from streaming.terminal import say

PORTS: Final = {
    "engine": "engine_port",
    "gateway": "gateway_port",
    "bridge": "bridge_port",
    "matcher": "matcher_port",
}
"""The commands that answer probes, each with its key of [metrics]."""
_UP: Final = "up"
_ALL_ADDRESSES: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # nosec B104 - read, not listened on
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command of Inflight with what decides on its settings."""

    command: str
    config: Path | None = None
    overrides: tuple[str, ...] = ()
    data_dir: Path | None = None


def read_command_line(words: Sequence[str]) -> CommandLine | None:
    """Returns the command in the words of a process, such as `tini -- inflight engine`; None if it is not Inflight's."""
    start = next((number for number, word in enumerate(words) if Path(word).name == "inflight"), None)
    if start is None:
        return None
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("command", nargs="?", default="")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--data-dir", type=Path)
    found, _ = parser.parse_known_args(words[start + 1 :])
    return CommandLine(found.command, found.config, tuple(found.set), found.data_dir)


def probed(line: CommandLine, settings: Settings) -> Iterator[tuple[str, int]]:
    """Yields host and port of each process that the command runs, as far as they are known."""
    metrics = settings.metrics
    if line.command == _UP:
        for address in Endpoints.read(line.data_dir or settings.engine.data_dir).metrics.values():
            host, _, served = address.rpartition(":")
            yield _ALL_ADDRESSES.get(host, host), int(served)
    elif line.command in PORTS:
        first = getattr(metrics, PORTS[line.command])
        processes = settings.gateway.processes if line.command == "gateway" else 1
        if first > 0:
            for port in range(first, first + processes):
                yield _ALL_ADDRESSES.get(metrics.host, metrics.host), port


def problem(host: str, port: int) -> str:
    """Asks a process whether it is alive. Returns what is wrong; empty if nothing is."""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{port} does not answer: {error}"
    finally:
        connection.close()
    return "" if answer.status == http.HTTPStatus.OK else f"{host}:{port} answers {answer.status}: {text}"


def main(command_line: bytes) -> int:
    """Returns the exit code for the words of process 1, separated by zero bytes."""
    line = read_command_line(command_line.decode(errors="replace").rstrip("\0").split("\0"))
    if line is None:
        say("process 1 is not Inflight: nothing is asked")
        return 0
    try:
        addresses = tuple(probed(line, load_settings(line.config, line.overrides)))
    except InflightError as error:
        say(str(error))
        return 1
    problems = [found for host, port in addresses if (found := problem(host, port))]
    for found in problems:
        say(found)
    if not problems:
        say(f"{len(addresses)} of {len(addresses)} alive" if addresses else "no port for probes: nothing is asked")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path("/proc/1/cmdline").read_bytes()))
