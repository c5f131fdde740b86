import asyncio
import time
from collections.abc import Callable
from typing import Any

from sinks.kafka.append import Confirmation, Headers
from sinks.kafka.patient import PATIENCE_S, PatientAppends

LATE_S = 10.0


class Log:
    """values: as they came. came: set by each."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.came = asyncio.Event()

    def append(self, topic: str, key: bytes, value: bytes, headers: Headers | None, done: Confirmation) -> None:
        assert (topic, key, headers, done) == ("t", b"k", None, _done)
        self.values.append(value)
        self.came.set()

    async def close(self, timeout_s: float) -> None:
        raise NotImplementedError


def _done(error: Exception | None) -> None:
    raise NotImplementedError


def run(test: Callable[[PatientAppends, Log], Any]) -> Any:
    async def main() -> Any:
        log = Log()
        return await test(PatientAppends(log, asyncio.get_running_loop()), log)

    return asyncio.run(main())


def give(appends: PatientAppends, value: bytes, *, has_time: bool) -> None:
    appends.append("t", b"k", value, None, _done, has_time=has_time)


def test_what_somebody_waits_for_goes_at_once_and_takes_along_what_was_given_before() -> None:
    async def test(appends: PatientAppends, log: Log) -> None:
        give(appends, b"1", has_time=False)
        assert log.values == [b"1"]
        give(appends, b"2", has_time=True)
        give(appends, b"3", has_time=True)
        assert log.values == [b"1"]
        give(appends, b"4", has_time=False)
        assert log.values == [b"1", b"2", b"3", b"4"]

    run(test)


def test_what_nobody_waits_for_goes_after_a_moment() -> None:
    async def test(appends: PatientAppends, log: Log) -> float:
        began_s = time.monotonic()
        give(appends, b"1", has_time=True)
        async with asyncio.timeout(LATE_S):
            await log.came.wait()
        log.came.clear()
        took_s = time.monotonic() - began_s
        give(appends, b"2", has_time=True)
        async with asyncio.timeout(LATE_S):
            await log.came.wait()
        assert log.values == [b"1", b"2"]
        return took_s

    assert run(test) >= 0.9 * PATIENCE_S


def test_many_do_not_wait() -> None:
    async def test(appends: PatientAppends, log: Log) -> None:
        for _ in range(64):
            assert log.values == []
            give(appends, b"v", has_time=True)
        assert len(log.values) == 64

    run(test)


def test_nothing_is_left_when_the_log_is_to_be_closed() -> None:
    async def test(appends: PatientAppends, log: Log) -> None:
        give(appends, b"1", has_time=True)
        appends.flush()
        assert log.values == [b"1"]
        await asyncio.sleep(2 * PATIENCE_S)
        assert log.values == [b"1"], "once"

    run(test)
