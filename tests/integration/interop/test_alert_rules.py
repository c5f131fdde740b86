"""Each alert of conf/prometheus/alerts.yml fires when it should, and not when all is well: by promtool's unit tests of rules.

A case has the series of metrics as promtool writes them (`0+60x10`: 0, then ten times 60 more; one value a minute), and the
minute at which the alert is looked at.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

RULES: Final = Path(__file__).parents[3] / "conf" / "prometheus" / "alerts.yml"
ENGINE, GATEWAY = 'job="inflight-engine",instance="e:1"', 'job="inflight-gateway",instance="g:1"'
HOUR, DAY = 60, 1_440


class Case(NamedTuple):
    """fires, well: values by series, in which the alert fires and does not. minute: when to look."""

    fires: dict[str, str]
    well: dict[str, str]
    minute: int = 15


def engine(name: str, labels: str = "") -> str:
    return f"inflight_engine_{name}{{{ENGINE}{labels and ','}{labels}}}"


def gateway(name: str, labels: str = "") -> str:
    return f"inflight_gateway_{name}{{{GATEWAY}{labels and ','}{labels}}}"


def ended(outcome: str) -> str:
    return engine("messages_ended_total", f'outcome="{outcome}"')


def confirmed(bound: str) -> str:
    return gateway("append_seconds_bucket", f'le="{bound}"')


CONFIRMATIONS = gateway("append_seconds_count")
NEWEST = engine("last_micro_batch_timestamp_seconds")
UP = f"up{{{GATEWAY}}}"
CASES: Final[dict[str, Case]] = {
    "InflightProcessDown": Case({UP: "1x5 0x20"}, {UP: "1x13 0 1x10"}),
    "InflightRestarts": Case(
        {f"process_start_time_seconds{{{ENGINE}}}": "1 1 2 2 3 3 4 4 5x20"},
        {f"process_start_time_seconds{{{ENGINE}}}": "1 1 2 2 3 3 4x20"},
    ),
    "InflightEngineHung": Case({engine("hangs_total"): "0x5 1x20"}, {engine("hangs_total"): "3x30"}),
    "InflightEngineEndsRepeatedly": Case({engine("ends_in_a_row"): "0 1 2 3 0x4"}, {engine("ends_in_a_row"): "0 1 2 0x20"}, 8),
    "InflightNoMicroBatch": Case({NEWEST: "0+60x5 300x20"}, {NEWEST: "0+60x30"}),
    "InflightLagGrows": Case(
        {engine("consumer_lag_records", 'topic="m"'): "20001+100x40"},
        {engine("consumer_lag_records", 'topic="m"'): "60000-100x40"},
        30,
    ),
    "InflightTransactionOpen": Case(
        {engine("held_back_records", 'topic="m"'): "0x5 7x20"}, {engine("held_back_records", 'topic="m"'): "0 7 0 7 0 7 0x20"}
    ),
    "InflightOldUnacknowledged": Case(
        {engine("oldest_unacknowledged_timestamp_seconds"): "60x250"},
        {engine("oldest_unacknowledged_timestamp_seconds"): "6000x250"},
        200,
    ),
    "InflightManyResends": Case(
        {engine("resends_total", 'trigger="retry_interval"'): "0+20x40", ended("delivered"): "0+100x40"},
        {engine("resends_total", 'trigger="retry_interval"'): "0+9x40", ended("delivered"): "0+100x40"},
        30,
    ),
    "InflightManyFail": Case(
        {ended("expired"): "0+10x40", ended("delivered"): "0+100x40"},
        {ended("expired"): "0+1x40", ended("duplicate"): "0+50x40", ended("delivered"): "0+100x40"},
        30,
    ),
    "InflightDropsForConnected": Case(
        {engine("dropped_connected_total", 'outcome="maxlen"'): "0+60x40"},
        {engine("dropped_connected_total", 'outcome="maxlen"'): "0+1x40"},
    ),
    "InflightWrongPartitioner": Case(
        {engine("misplaced_records_total"): "0x5 12x20"}, {engine("misplaced_records_total"): "12x30"}
    ),
    "InflightQuarantined": Case({engine("sessions_quarantined"): "1x20"}, {engine("sessions_quarantined"): "0x20"}),
    "InflightDiskFull": Case({engine("free_disk_bytes"): "2e9x9 9e8x9"}, {engine("free_disk_bytes"): "2e9x20"}),
    "InflightAppendsFail": Case({gateway("appends_failed_total"): "0x10 1x20"}, {gateway("appends_failed_total"): "1x30"}, 12),
    "InflightAppendsSlow": Case(
        {confirmed("0.5"): "0+10x40", confirmed("1.0"): "0+100x40", confirmed("+Inf"): "0+100x40"},
        {confirmed("0.5"): "0+100x40", confirmed("1.0"): "0+100x40", confirmed("+Inf"): "0+100x40"},
        30,
    ),
    "InflightNoPartition": Case({gateway("partitions_owned"): "4x5 0x20"}, {gateway("partitions_owned"): "4x30"}),
    "InflightNobodyRoutes": Case(
        {f"inflight_matcher_partitions_owned{{{GATEWAY}}}": "4x5 0x20"},
        {f"inflight_matcher_partitions_owned{{{GATEWAY}}}": "4x30"},
    ),
    "InflightMatcherLag": Case(
        {f"inflight_matcher_lag{{{GATEWAY}}}": "10001+100x40"}, {f"inflight_matcher_lag{{{GATEWAY}}}": "20000-100x40"}, 30
    ),
    "InflightLeaseLost": Case({gateway("leases_lost_total"): "0x10 1x20"}, {gateway("leases_lost_total"): "1x30"}),
    "InflightDevicesDoNotRead": Case(
        {gateway("writers_blocked"): "20x40", gateway("sockets"): "100x40"},
        {gateway("writers_blocked"): "20x40", gateway("sockets"): "1000x40"},
        30,
    ),
    "InflightLoginsRefused": Case(
        {gateway("logins_refused_total", 'reason="password"'): "0+120x40"},
        {gateway("logins_refused_total", 'reason="password"'): "0+30x40"},
        30,
    ),
    "InflightBrokerAway": Case(
        {'inflight_bridge_broker_losses_total{instance="b:1"}': "0+1x40"},
        {'inflight_bridge_broker_losses_total{instance="b:1"}': "0x10 1x30"},
    ),
    "InflightClockOff": Case({gateway("clock_skew_seconds"): "-6x20"}, {gateway("clock_skew_seconds"): "-4x20"}),
    "InflightBug": Case({gateway("bugs_total"): "0x5 1x20"}, {gateway("bugs_total"): "1x30"}),
    "InflightDeliveryBudgetFast": Case(
        {ended("delivered"): "0+1000x80", ended("maxlen"): "0+20x80"},
        {ended("delivered"): "0+1000x80", ended("maxlen"): "0+20x20 400x60", ended("rejected"): "0+500x80"},
        HOUR + 10,
    ),
    "InflightDeliveryBudgetSlow": Case(
        {ended("delivered"): "0+1000x1500", ended("expired"): "0+4x1500"},
        {ended("delivered"): "0+1000x1500", ended("expired"): "0+2x1500"},
        DAY + 10,
    ),
    "InflightEngineBudgetFast": Case({NEWEST: "0+60x65 3900x20"}, {NEWEST: "0+60x90"}, HOUR + 10),
    "InflightEngineBudgetSlow": Case(
        {NEWEST: "0+60x1380 82800x19 84060+60x100"}, {NEWEST: "0+60x1000 60000x19 61260+60x500"}, DAY + 10
    ),
    "InflightGatewaysBudgetFast": Case({UP: "1x65 0x20"}, {UP: "1x90"}, HOUR + 10),
    "InflightGatewaysBudgetSlow": Case({UP: "1x1400 0x19 1x100"}, {UP: "1x1000 0x19 1x500"}, DAY + 10),
    "InflightConfirmationsBudgetFast": Case(
        {confirmed("0.2"): "0+80x80", CONFIRMATIONS: "0+100x80"},
        {confirmed("0.2"): "0+90x80", CONFIRMATIONS: "0+100x80"},
        HOUR + 10,
    ),
    "InflightConfirmationsBudgetSlow": Case(
        {confirmed("0.2"): "0+96x1500", CONFIRMATIONS: "0+100x1500"},
        {confirmed("0.2"): "0+98x1500", CONFIRMATIONS: "0+100x1500"},
        DAY + 10,
    ),
}


def alerts() -> list[str]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]


def promtool() -> str:
    found = shutil.which("promtool", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        reason = "promtool is not installed: `make test-interop` installs it (Debian's package prometheus)"
        assert not os.environ.get("INFLIGHT_NO_SKIPS"), reason
        pytest.skip(reason)
    return found


def outcome_of(directory: Path, *tests: dict[str, Any], every: str = "1m") -> str:
    """Returns what promtool says; empty if all tests pass. every: how often the rules are evaluated."""
    file = directory / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": every, "tests": list(tests)}))
    done = subprocess.run([promtool(), "test", "rules", str(file)], capture_output=True, text=True, timeout=120, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def looked_at(alert: str, minute: int, series: dict[str, str], *, fires: bool) -> dict[str, Any]:
    firing = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": f"{minute}m",
                "exp_samples": firing,
            }
        ],
    }


def test_every_alert_has_a_case() -> None:
    assert list(CASES) == alerts()


@pytest.mark.interop
def test_promtool_takes_the_rules() -> None:
    done = subprocess.run([promtool(), "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise("alert-fires")
@pytest.mark.interop
@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_should_and_is_silent_when_all_is_well(alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    fires = looked_at(alert, case.minute, case.fires, fires=True)
    well = looked_at(alert, case.minute, case.well, fires=False)
    assert outcome_of(tmp_path, fires, well, every="5m" if case.minute > DAY else "1m") == ""


@pytest.mark.interop
def test_an_alert_that_does_not_fire_would_be_found(tmp_path: Path) -> None:
    case = CASES["InflightBug"]
    assert "FAILED" in outcome_of(tmp_path, looked_at("InflightBug", case.minute, case.well, fires=True))


@pytest.mark.interop
def test_a_dead_engine_uses_up_its_budget_although_its_metrics_are_gone(tmp_path: Path) -> None:
    gone = looked_at("InflightEngineBudgetFast", HOUR + 10, {NEWEST: "0+60x60"}, fires=True)
    assert outcome_of(tmp_path, gone) == ""
