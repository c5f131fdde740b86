"""Has the fixtures of many tests, says which tests share a process, and fails interoperability tests that are skipped."""

import asyncio
import gc
import inspect
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import Jars, ensure_jars
from streaming.config.settings import ENVIRONMENT_PREFIX
from tests.support import hypothesis_profiles
from tests.support.shared import SharedKafka, await_stopped, shared

hypothesis_profiles.load()

gc.disable()  # until all tests are collected

# The JVMs live for a minute or two here, and share two cores. Optimising for hours costs more than it saves. A small code cache
# is swept and filled again all the time, which costs a fifth of Spark's time. A garbage collector needs no threads of its own.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def jars() -> Jars:
    """The jars of both class paths; downloaded if they are not in the cache."""
    return ensure_jars()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[SharedKafka]:
    """A real broker for the whole test run. Tests share it: give topics, groups and client ids names of your own."""

    def start(directory: Path) -> tuple[SharedKafka, Callable[[], None]]:
        broker = EmbeddedKafka(directory, jars=jars)
        broker.start()
        return SharedKafka(broker.bootstrap_servers), broker.stop

    with shared(tmp_path_factory, "kafka", SharedKafka, start) as found:
        yield found


@pytest.fixture(autouse=True)
def _no_foreign_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the developer's own environment from deciding how a test ends."""
    for name in os.environ:
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


GROUPS = {
    "test_continues_written_data.py": "up",
    "test_refusing_devices.py": "up",
    "spark": "spark",
}
"""Files that run in one process, one after the other, because they share a server or have to use it first."""

LONGEST_FIRST = (
    "tests/spark/",
    "test_continues_written_data.py",
    "test_refusing_devices.py",
    "gateway/test_fast_path.py",
    "test_gateway_kafka.py",
    "kafka/test_command_tail.py",
    "tests/integration/up/",
    "test_gateway_fuzz.py",
)
"""Files that take long, in the order in which they begin; all others come afterwards. The files that share one `inflight up` run
at the same time, as soon as the first has started it: one micro-batch then serves the devices of all of them."""


def group_of(path: str) -> str:
    """Names the group of a file. With `pytest -n … --dist loadfile` one process runs the files of a group."""
    folder, _, name = path.rpartition("/")
    return GROUPS["spark"] if folder.endswith("tests/spark") else GROUPS.get(name, path)


def _order_of(path: str) -> int:
    return next((number for number, part in enumerate(LONGEST_FIRST) if part in path), len(LONGEST_FIRST))


class Groups(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    return Groups(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leaves modules and collected tests out of the garbage collections, each of which would visit a million objects."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Stops the servers that this process shares with others, which may use them for longer than a test may take."""
    await_stopped()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # A tracer doubles the time of these tests, and they reach no line that no other test reaches.
        if getattr(getattr(item, "function", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.no_cover)
        for marker in ("spark", "integration"):
            if f"/tests/{marker}/" in item.path.as_posix():
                item.add_marker(marker)
    items.sort(key=lambda item: _order_of(item.path.as_posix()))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine, on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a skipped test if INFLIGHT_NO_SKIPS is set: in `make test-interop` a missing tool is an error."""
    report = yield
    if report.skipped and os.environ.get("INFLIGHT_NO_SKIPS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and skipping is not allowed in this run: {report.longrepr}"
    return report
