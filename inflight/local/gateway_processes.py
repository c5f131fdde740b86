"""Runs a gateway of several processes (`gateway.processes`): all listen on the same ports, and the kernel shares connections out.

For Kafka each process is a gateway of its own, with partitions and a lease. This one holds the ports, starts the
others, restarts one that has ended, and passes signals on; it reads no packet.
"""

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from inflight.local.supervised_child import SupervisedChild, until_stopped
from sinks.mqtt.settings import AUTO, GatewaySettings, ListenerSettings
from streaming.config.settings import Settings

_FREE_WITHIN_S: Final = 3.0
"""Children of a process that was killed need a moment to notice."""
_FREE_POLL_S: Final = 0.05
_LONGER_S: Final = 10.0


def process_count(settings: Settings) -> int:
    """Returns how many processes `gateway.processes` means on this machine."""
    wanted = settings.gateway.processes
    return min(os.cpu_count() or 1, settings.topics.partitions.commands) if wanted == AUTO else wanted


def metrics_port(port: int, number: int) -> int:
    """Returns the metrics port of one process.

    Args:
        port: `metrics.gateway_port`. "Any free port" and "off" hold for each process.
        number: The process's number, from 1 on.
    """
    return port + number - 1 if port > 0 else port


class GatewayProcesses:
    """Supervises `count` processes of `inflight gateway`.

    Args:
        arguments: Arguments of the command, for each process.
        say: Told what happens, for people.
        announce: Told the MQTT address, those of [[listeners]] and the metrics addresses, once all are ready.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        count: int,
        arguments: Sequence[str],
        *,
        say: Callable[[str], None],
        announce: Callable[[str, str, Sequence[str]], None],
    ) -> None:
        self._settings = settings
        self._arguments = list(arguments)
        self._announce = announce
        self._stop = asyncio.Event()
        self._children = [
            SupervisedChild(f"gateway process {number}", partial(self._arguments_of, number), say=say)
            for number in range(1, count + 1)
        ]

    async def run(self) -> None:
        """Returns after a clean stop (SIGINT, SIGTERM; a second one makes it short). SIGHUP is passed on.

        Raises:
            OSError: Something else listens on one of the ports.
            ChildProcessFailed: A process could not start.
        """
        loop = asyncio.get_running_loop()
        with ExitStack() as held:
            for listener in self._settings.all_listeners:
                address = held.enter_context(await _hold(listener)).getsockname()
                if listener.port == 0:  # only that of gateway.port may
                    self._arguments += ["--set", f"gateway.port={address[1]}"]
            for number in signal.SIGINT, signal.SIGTERM:
                loop.add_signal_handler(number, self._stop_or_hurry)
            if not os.isatty(0):  # else it is the terminal that goes, and we with it
                loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
            try:
                await until_stopped(self._stop, *(child.run() for child in self._children), self._report_ready())
            finally:
                settings = self._settings
                within_s = (settings.drain_ms + 2 * settings.stop_timeout_ms) / 1_000 + _LONGER_S
                await asyncio.gather(*(child.stop(within_s) for child in self._children))

    async def _report_ready(self) -> None:
        for child in self._children:
            await child.ready.wait()
        addresses = [address for child in self._children for _, address in child.metrics()]
        words = self._children[0].words
        self._announce(words["mqtt"], words.get("listeners", ""), addresses)

    def _arguments_of(self, number: int) -> list[str]:
        words = ["gateway", *self._arguments, "--number", str(number)]
        served = self._children[number - 1].words.get("metrics")
        if served:  # a restarted process serves its metrics where it did before, even if any free port would do
            first = int(served.rpartition(":")[2]) - (number - 1)
            words += ["--set", f"metrics.gateway_port={first}"]
        return words

    def _stop_or_hurry(self) -> None:
        if self._stop.is_set():
            self._pass_on(signal.SIGTERM)
        self._stop.set()

    def _pass_on(self, number: signal.Signals) -> None:
        for child in self._children:
            child.send_signal(number)


async def _hold(listener: ListenerSettings) -> socket.socket:
    """Binds the address so that only processes of ours can listen there. Raises OSError."""
    deadline = time.monotonic() + _FREE_WITHIN_S
    while True:
        try:
            return _bound(listener)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise OSError(error.errno, error.strerror or str(error), f"{listener.host}:{listener.port}") from error
        await asyncio.sleep(_FREE_POLL_S)


def _bound(listener: ListenerSettings) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    if listener.port:  # another program may listen and share its port
        socket.create_server(address[:2], family=family).close()
    held = socket.socket(family, kind)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError:
        held.close()
        raise
    return held
