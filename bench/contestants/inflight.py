"""Runs `inflight up` with its defaults.

Its backend uses librdkafka, and the devices' publications must be in `inflight.uplink`.
"""

import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import psutil
from kafka import KafkaConsumer, TopicPartition

from bench.contestants.child import Child
from bench.contestants.processor_time import parts_of_up
from bench.end_to_end import await_handled
from inflight.demo.up import UpProcess
from inflight.local.supervised_child import kill_group

_POLL_S = 0.05
_STANDBY_S = 120.0
_WAITS = b"standby_waits"
"""The log event of an engine that waits."""


class Inflight:
    """Inflight as a contestant. Its devices need no subscription, because it delivers by client id."""

    title: ClassVar[str] = "Inflight"
    subscribe: ClassVar[str] = ""
    has_shared_subscriptions: ClassVar[bool] = True
    has_standby: ClassVar[bool] = True
    keeps_sessions: ClassVar[bool] = True

    def __init__(self, directory: Path, settings: list[str], *, standby: bool = False, checkout: Path | None = None) -> None:
        """checkout: of another version; None = this one."""
        options = [word for setting in settings for word in ("--set", setting)]
        self._standby = standby
        self._up = UpProcess(directory / "data", *options, *(["--standby"] if standby else []), checkout=checkout)

    @staticmethod
    def version() -> str:
        return metadata.version("inflight")

    @property
    def mqtt(self) -> tuple[str, int]:
        return self._up.mqtt

    def processes(self) -> Iterator[tuple[str, psutil.Process]]:
        return parts_of_up(self._up.data_dir)

    def backend(self) -> Child:
        return Child("bench.contestants.kafka_backend", self._up.kafka)

    def uplink(self, count: int) -> "UplinkTopic":
        return UplinkTopic(self._up.kafka, count)

    def await_rest(self, within_s: float) -> None:
        """Returns when the engine has handled all that is in its log."""
        await_handled(self._up, within_s)

    def kill(self) -> None:
        """Kills the engine: its driver, the JVM and the workers. `inflight up` starts it again."""
        pid = self._up.engine_pid()
        if pid is None:
            raise RuntimeError("no engine runs that could be killed")
        kill_group(pid)

    def __enter__(self) -> Self:
        try:
            self._up.__enter__()
            if self._standby:
                self._await_standby()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._up.__exit__(kind, error, trace)

    def _await_standby(self) -> None:
        """Returns when the second engine has practised and waits. Raises TimeoutError."""
        log, deadline = self._up.data_dir / "logs" / "standby.log", time.monotonic() + _STANDBY_S
        while not (log.exists() and _WAITS in log.read_bytes()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"there is no standby:\n{self._up.log_tail('standby')}")
            time.sleep(_POLL_S)


class UplinkTopic:
    """Counts records when they are in the log, without reading them."""

    def __init__(self, bootstrap_servers: str, count: int) -> None:
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
        self._count = count
        self._before = 0

    def await_all(self, within_s: float) -> dict[str, float]:
        deadline = time.monotonic() + within_s
        while (arrived := self._end() - self._before) < self._count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {arrived:,} of {self._count:,} publications are in Kafka, and all are acknowledged")
            time.sleep(_POLL_S)
        return {}

    def __enter__(self) -> Self:
        self._before = self._end()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._consumer.close()

    def _end(self) -> int:
        topic = "inflight.uplink"
        partitions = [TopicPartition(topic, number) for number in self._consumer.partitions_for_topic(topic) or ()]
        return sum(self._consumer.end_offsets(partitions).values())
