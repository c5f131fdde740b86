"""Every metric stands in docs/reference/metrics.md, under a name of the scheme; nothing else does."""

import re
from pathlib import Path

import pytest

from tests.support.metrics import every_metric

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(inflight_\w+)` \| (?:`(\w+)` )?\| .+ \|$", re.MULTILINE)
NOT_BASE_UNITS = ("_ms", "_milliseconds", "_minutes", "_hours", "_kib", "_mib", "_kilobytes", "_percent", "_count")


def documented() -> dict[str, str]:
    """Returns the label of each metric by name."""
    rows = ROW.findall(PAGE)
    assert len({name for name, _ in rows}) == len(rows)
    return dict(rows)


def test_the_page_has_every_metric_with_its_label_and_no_other() -> None:
    assert documented() == every_metric()


def test_all_names_follow_the_scheme() -> None:
    for name in every_metric():
        assert re.fullmatch(r"inflight_(engine|gateway|bridge|matcher|producer)(_[a-z0-9]+)+", name), name
        assert not name.removesuffix("_total").endswith(NOT_BASE_UNITS), name


@pytest.mark.parametrize(
    "page", ["operate/alerts.md", "operate/watch.md", "operate/security.md", "guides/producer.md", "operate/install.md"]
)
def test_other_pages_name_only_metrics_that_exist(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`(inflight_(?:engine|gateway|bridge|matcher|producer)_[a-z0-9_]+)`", text))
    assert named - set(every_metric()) == set()
