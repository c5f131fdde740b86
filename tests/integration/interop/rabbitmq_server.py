"""A real RabbitMQ for a test: own process, own data, loopback and free ports only.

Needs Debian's package `rabbitmq-server` (its service need not run) and pika. Two processes are started, and both die with the
test: the broker, and epmd, Erlang's port mapper, which the broker would otherwise leave behind as a daemon.
"""

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, cast

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from inflight.local.child_process import free_port, start_child
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The broker itself: the command of the same name on the PATH is Debian's wrapper, which changes the user."""

_START_S = 60.0
_STOP_S = 20.0


def is_installed() -> bool:
    return SCRIPT.exists() and shutil.which("epmd") is not None


class RabbitMq:
    """A RabbitMQ server as a context manager. Raises AssertionError with the broker's last log lines when it does not start."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port(HOST)
        self._directory = directory
        self._environment: dict[str, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "RabbitMq":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def channel(self) -> BlockingChannel:
        """A channel in publisher-confirm mode, on a connection of its own."""
        parameters = pika.ConnectionParameters(host=HOST, port=self.port, heartbeat=0, blocked_connection_timeout=_START_S)
        channel = pika.BlockingConnection(parameters).channel()
        channel.confirm_delivery()
        return channel

    def set_policies(self, *policies: tuple[str, str, dict[str, str | int], int]) -> None:
        """(name, regular expression of queue names, definition, priority); one call, because each starts an Erlang VM."""
        calls = []
        for name, pattern, definition, priority in policies:
            texts = ("/", name, pattern, json.dumps(definition), str(priority), "queues", "test")
            calls.append(f"ok = rabbit_policy:parse_set({', '.join(f'<<{json.dumps(text)}>>' for text in texts)})")
        subprocess.run(
            [str(SCRIPT.with_name("rabbitmqctl")), "eval", ", ".join(calls) + "."],
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=_START_S,
        )

    def _start(self) -> None:
        epmd_port = free_port(HOST)
        self._environment = self._make_environment(epmd_port)
        self._run(["epmd", "-address", HOST, "-port", str(epmd_port)], "epmd.log")
        broker = self._run([str(SCRIPT)], "stdout.log")

        def still_runs() -> None:
            assert broker.poll() is None, f"RabbitMQ ended with {broker.returncode}:\n{self._last_words()}"

        wait_until(self._answers, lambda: f"RabbitMQ answers:\n{self._last_words()}", check=still_runs)

    def _make_environment(self, epmd_port: int) -> dict[str, str]:
        home, configuration = self._directory / "home", self._directory / "rabbitmq.conf"
        home.mkdir(parents=True)
        configuration.write_text(f"listeners.tcp.1 = {HOST}:{self.port}\nlog.file.level = info\n", encoding="utf-8")
        plugins = self._directory / "enabled_plugins"
        plugins.write_text("[].\n", encoding="utf-8")
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        return {
            **kept,
            "HOME": str(home),  # the cookie: one of its own, so that no other node can be meant
            "RABBITMQ_NODENAME": f"inflight-test-{os.getpid()}-{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_DIST_PORT": str(free_port(HOST)),
            "RABBITMQ_MNESIA_BASE": str(self._directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(configuration),
            "RABBITMQ_CONF_ENV_FILE": str(self._directory / "no-such-file.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the broker, so its process id is the broker's
        }

    def _run(self, command: list[str], log: str) -> "subprocess.Popen[bytes]":
        with (self._directory / log).open("wb") as output:
            process = start_child(
                command, stdout=output, stderr=subprocess.STDOUT, environment=self._environment, cwd=self._directory
            )
        self._processes.append(process)
        return process

    def _answers(self) -> bool:
        try:
            socket.create_connection(
                (HOST, self.port), timeout=1.0
            ).close()  # costs the broker less of the processor than pika does
            self.channel().connection.close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _last_words(self) -> str:
        texts = [path.read_text(errors="replace")[-2_000:] for path in sorted(self._directory.rglob("*.log"))]
        return "\n".join(texts)


def get(channel: BlockingChannel, queue: str) -> tuple[Any, Any, bytes]:
    """(method, properties, body) of the next message of a queue, not acknowledged yet. Raises AssertionError at the deadline."""

    def message() -> tuple[Any, Any, bytes] | None:
        method, properties, body = channel.basic_get(queue)
        return None if method is None or properties is None or body is None else (method, properties, body)

    return cast(tuple[Any, Any, bytes], wait_until(message, f"a message in queue {queue}", within_s=15.0))
