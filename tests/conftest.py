"""Fixtures that many tests share, which tests share a process, and the rule that a skipped interoperability test is failed."""

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

# The JVMs live for a minute or two here, and share two cores. What is optimised for hours costs more than it saves; a small code
# cache is swept and filled again all the time, a fifth of what Spark takes; a garbage collector needs no threads of its own.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def jars() -> Jars:
    """The resolved jars; the first time ever this downloads them."""
    return ensure_jars()


@pytest.fixture(scope="session")
def stopped_at_last() -> Iterator[None]:
    """The servers that this process has started for others, too, are stopped when it ends."""
    yield
    await_stopped()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, jars: Jars, stopped_at_last: None) -> Iterator[SharedKafka]:
    """A real broker for the whole test run. Tests share it: give topics and client ids names of your own."""

    def start(directory: Path) -> tuple[SharedKafka, Callable[[], None]]:
        broker = EmbeddedKafka(directory, jars=jars)
        broker.start()
        return SharedKafka(broker.bootstrap_servers), broker.stop

    with shared(tmp_path_factory, "kafka", SharedKafka, start) as found:
        yield found


@pytest.fixture(autouse=True)
def _no_foreign_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own environment must not decide how a test ends."""
    for name in os.environ:
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


GROUPS = {
    "test_continues_0_1_0.py": "up",
    "test_refusing_devices.py": "up",
    "spark": "spark",
}
"""Files that run in one process, one after the other, and share what is slow to start, or need it first."""

LONGEST_FIRST = (
    "tests/spark/",
    "test_continues_0_1_0.py",
    "test_refusing_devices.py",
    "gateway/test_fast_path.py",
    "test_gateway_kafka.py",
    "kafka/test_command_tail.py",
    "tests/integration/up/",
    "test_gateway_fuzz.py",
)
"""What takes long, in the order in which it is begun; all else comes afterwards. The files that share one `inflight up` run at
the same time, because one micro-batch serves the devices of all of them, and as soon as the first has started it."""


def group_of(path: str) -> str:
    """With `pytest -n … --dist loadfile` the files of one group run in one process, so what they share is started once."""
    folder, _, name = path.rpartition("/")
    return GROUPS["spark"] if folder.endswith("tests/spark") else GROUPS.get(name, path)


def _turn_of(path: str) -> int:
    return next((turn for turn, part in enumerate(LONGEST_FIRST) if part in path), len(LONGEST_FIRST))


class Groups(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    return Groups(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # A tracer doubles their time, and they reach no line that a test with a name of its own does not.
        if getattr(getattr(item, "function", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.no_cover)
    items.sort(key=lambda item: _turn_of(item.path.as_posix()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """`make test-interop` sets INFLIGHT_NO_SKIPS: there a missing tool is an error, not a reason to look away."""
    report = yield
    if report.skipped and os.environ.get("INFLIGHT_NO_SKIPS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and skipping is not allowed in this run: {report.longrepr}"
    return report
