"""Prometheus' rules and Grafana's dashboard: they parse, use metrics and labels that exist, and each alert says what to do.

`make test-containers` runs Prometheus in a container with these files. Grafana is not run.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.metrics import every_metric

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
OF_PROMETHEUS_CLIENT = {"process_start_time_seconds"}
OF_PROMETHEUS = {"instance", "job", "le"}


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CONF / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CONF / "grafana" / "dashboards" / "inflight.json").read_text())["panels"]
    return found


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel.get("targets", ()))


def recorded(expression: str) -> set[str]:
    """The rules that the expression uses."""
    return set(re.findall(r"\bslo:[\w:]+", expression))


def test_every_recorded_rule_that_is_used_exists_before_its_use() -> None:
    known: set[str] = set()
    for rule in rules():
        assert recorded(rule["expr"]) <= known, rule
        known |= {rule["record"]} if "record" in rule else set()
    assert len(known) == 18


def names(expression: str) -> set[str]:
    found = re.findall(r"\b((?:inflight|process)_\w+)", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_metric_and_label_that_is_used_exists(expression: str) -> None:
    used = names(expression) - OF_PROMETHEUS_CLIENT
    assert used or "up{" in expression or "process_" in expression or recorded(expression)
    known = every_metric()
    assert used - known.keys() == set()
    labels = {known[name] for name in used} | OF_PROMETHEUS
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = [label for group in re.findall(r"(?:by|ignoring) \(([^)]*)\)", expression) for label in group.split(", ")]
    assert {*selected, *grouped} - labels == set()


def test_every_metric_of_the_engine_that_says_what_is_wrong_has_an_alert() -> None:
    alerted = set().union(*(names(alert["expr"]) for alert in alerts()))
    for name in (
        "hangs_total",
        "consumer_lag_records",
        "sessions_quarantined",
        "free_disk_bytes",
        "dropped_connected_total",
        "misplaced_records_total",
    ):
        assert f"inflight_engine_{name}" in alerted


def test_each_alert_has_its_paragraph_of_what_to_do_and_names_it() -> None:
    page = (ROOT / "docs" / "operate" / "alerts.md").read_text(encoding="utf-8")
    paragraphs = {name: text.strip() for name, text in re.findall(r"^## (\w+)\n\n((?:.+\n)+)", page, flags=re.MULTILINE)}
    assert list(paragraphs) == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["annotations"]["runbook"] == f"docs/operate/alerts.md#{alert['alert'].lower()}"
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("warning", "critical")


def test_prometheus_in_containers_scrapes_where_metrics_are_served() -> None:
    configuration = yaml.safe_load((CONF / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in configuration["scrape_configs"]}
    ports = {
        name: COMPOSE["services"][name]["environment"][f"INFLIGHT__METRICS__{name.upper()}_PORT"]
        for name in ("engine", "gateway")
    }
    served = {
        "inflight-engine": [f"{name}:{ports['engine']}" for name in ("engine", "standby")],
        "inflight-gateway": [f"gateway:{ports['gateway']}"],
    }
    assert COMPOSE["services"]["standby"] == COMPOSE["services"]["engine"], "either of them may have to work"
    assert jobs == served
    assert COMPOSE["services"]["engine"]["environment"]["INFLIGHT__METRICS__HOST"] == "0.0.0.0"
    (rules,) = configuration["rule_files"]
    assert (CONF / "prometheus" / Path(rules).name).is_file()
    assert "./conf/prometheus:/etc/prometheus:ro" in COMPOSE["services"]["prometheus"]["volumes"]


def test_grafana_in_containers_finds_its_source_and_its_dashboard() -> None:
    provisioning = CONF / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "inflight.yml").read_text(encoding="utf-8"))["providers"]
    mounts = [volume.split(":") for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert all((ROOT / host).is_dir() for host, _, _ in mounts)
    assert provider["options"]["path"] in [inside for _, inside, _ in mounts]
    for panel in panels():
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": source["uid"]}
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_only_this_machine_reaches_what_watches() -> None:
    for name in ("prometheus", "grafana"):
        assert all(port.startswith("127.0.0.1:") for port in COMPOSE["services"][name]["ports"])
