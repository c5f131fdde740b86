"""docs/operate/data.md has every topic with its retention, and SECURITY.md the present version."""

import re
import tomllib
from pathlib import Path

import pytest

from streaming.archive.tables import TABLES
from streaming.config.settings import Settings
from streaming.config.units import format_duration
from streaming.topics import TopicPlan, planned_topics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate" / "data.md").read_text(encoding="utf-8")
ROWS = {
    name: cells[-1].split("; ")[min(index, len(cells[-1].split("; ")) - 1)]
    for line in PAGE.splitlines()
    if line.startswith("| `") and len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == 3
    for index, name in enumerate(re.findall(r"`([\w-]+)`", cells[0]))
}
"""How long each topic is kept, by its name without the prefix. A row of two topics has two texts, or one for both."""


@pytest.mark.parametrize("plan", planned_topics(Settings()), ids=lambda plan: plan.name)
def test_the_page_says_how_long_each_topic_is_kept(plan: TopicPlan) -> None:
    kept = ROWS[plan.name.removeprefix("inflight.")]
    if plan.retention_ms is None:
        assert re.match(r"until |while |for ever|newest ", kept), kept
    else:
        assert kept == format_duration(plan.retention_ms)


def test_the_page_deletes_from_every_table_of_the_archive() -> None:
    (names,) = re.findall(r"^for name in \((.+)\):$", PAGE, flags=re.MULTILINE)
    assert {name.strip('" ') for name in names.split(",")} == {table.name for table in TABLES}


def test_the_longest_time_is_the_one_of_the_settings() -> None:
    settings = Settings()
    dead_letters, archive = (ms // 86_400_000 for ms in (settings.topics.retention.dead_letters, settings.archive.retention))
    assert f"gone {dead_letters + 7} days later ({dead_letters} days of dead letters, and 7 of a segment)" in PAGE
    assert f", {archive + 1} days with the archive" in PAGE


def test_the_policy_of_security_names_the_present_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"| {version.rpartition('.')[0]}.x, the newest one | yes" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_every_target_that_the_policy_of_security_names_exists() -> None:
    targets = re.findall(r"`make ([\w-]+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert len(targets) == 5
    assert [target for target in targets if f"\n.PHONY: {target}\n" not in makefile] == []
