"""Fixtures that many tests share, and the rule that a skipped interoperability test is a failed one."""

import os
from collections.abc import Generator, Iterator

import pytest

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import Jars, ensure_jars
from streaming.config.settings import ENVIRONMENT_PREFIX


@pytest.fixture(scope="session")
def jars() -> Jars:
    """The resolved jars; the first time ever this downloads them."""
    return ensure_jars()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[EmbeddedKafka]:
    """A real broker for the whole test run. Tests share it: give topics and client ids names of your own."""
    with EmbeddedKafka(tmp_path_factory.mktemp("shared-kafka"), jars=jars) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _no_foreign_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own environment must not decide how a test ends."""
    for name in os.environ:
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """`make test-interop` sets INFLIGHT_NO_SKIPS: there a missing tool is an error, not a reason to look away."""
    report = yield
    if report.skipped and os.environ.get("INFLIGHT_NO_SKIPS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and skipping is not allowed in this run: {report.longrepr}"
    return report
