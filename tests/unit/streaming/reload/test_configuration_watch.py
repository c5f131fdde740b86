from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from streaming.config.settings import Settings, load_settings
from streaming.reload.configuration_watch import ConfigurationWatch


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """A file, and a clock that advances a second after each poll."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("[session]\nmax_inflight = 1")
        self.clock = Clock()
        self.watch = ConfigurationWatch(path, lambda: load_settings(path, ["session.prefetch=3"]), monotonic_s=self.clock)

    def write(self, text: str) -> None:
        self.path.write_text(text, encoding="utf-8")

    def look(self) -> Settings | None:
        self.clock.now_s += 1
        return self.watch.changed()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "inflight.toml")


def test_a_new_content_is_read_once_when_it_has_stood_for_a_second(watched: Watched) -> None:
    assert watched.look() is None
    watched.write("[session]\nmax_inflight = 2")
    assert watched.look() is None
    new = watched.look()
    assert new is not None
    assert (new.session.max_inflight, new.session.prefetch) == (2, 3)
    assert watched.look() is None


def test_the_file_is_read_at_most_once_a_second(watched: Watched) -> None:
    watched.write("[session]\nmax_inflight = 2")
    assert [watched.watch.changed() for _ in range(5)] == [None] * 5
    assert watched.look() is None
    assert watched.watch.changed() is None
    assert watched.look() is not None


def test_a_file_that_is_being_written_or_replaced_is_waited_for(watched: Watched) -> None:
    steps: list[Callable[[], object]] = [
        lambda: watched.write(""),
        lambda: watched.write("[sess"),
        watched.path.unlink,
        lambda: None,
        lambda: watched.write("[session]\nmax_inflight = 4"),
    ]
    with capture_logs() as logs:
        for step in steps:
            step()
            assert watched.look() is None
        new = watched.look()
    assert new is not None
    assert new.session.max_inflight == 4
    assert logs == []


def test_a_wrong_file_is_reported_once_and_the_next_right_file_loaded(watched: Watched) -> None:
    with capture_logs() as logs:
        watched.write("[session]\nmax_inflight = -5\n[policy]")
        assert [watched.look() for _ in range(4)] == [None] * 4
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("settings_not_taken", "error")
    assert "max_inflight" in line["problems"]
    watched.write("[session]\nmax_inflight = 1")
    watched.look()
    assert watched.look() is not None


@pytest.mark.parametrize("text", ["", "\n", "# [session]"])
def test_an_emptied_file_is_reported_once_and_not_loaded(watched: Watched, text: str) -> None:
    with capture_logs() as logs:
        watched.write(text)
        assert [watched.look() for _ in range(4)] == [None] * 4
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("settings_not_taken", "error")
    assert "has no key" in line["problems"]


def test_a_file_that_was_only_touched_is_not_read(watched: Watched) -> None:
    watched.path.touch()
    assert [watched.look() for _ in range(3)] == [None] * 3


def test_a_requested_reload_happens_at_once_even_without_a_change(watched: Watched) -> None:
    watched.watch.ask()
    assert watched.watch.changed() is not None
    assert watched.watch.changed() is None
    watched.write("[session]\nmax_inflight = 2")
    watched.watch.ask()
    new = watched.watch.changed()
    assert new is not None
    assert new.session.max_inflight == 2
    assert [watched.look() for _ in range(3)] == [None] * 3
