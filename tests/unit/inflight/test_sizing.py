"""`inflight size`: the formula, its constants, and the page that shows both."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from typer.testing import CliRunner

from inflight.cli.app import app
from inflight.cli.size import deployment_of, per_second
from inflight.sizing import (
    BURST,
    CONNECT,
    CONSTANTS,
    IDLE,
    MESSAGE,
    PARTS,
    RATES,
    Fleet,
    bytes_a_day,
    cores,
    gateway_processes,
    message_cores,
    waiting_after_a_day,
)
from streaming.config.settings import Settings, load_settings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operate" / "sizing.md").read_text(encoding="utf-8")
KEPT = ROOT / "docs" / "project" / "results" / "contestants_calm.json"
FLEET = Fleet(devices=10_000, messages_per_s=1 / 60, publications_per_s=0.0, payload_bytes=200, keep_alive_s=60.0)
DEFAULTS = deployment_of(Settings())


def size(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["size", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout.rstrip()


def value(what: str, *arguments: str) -> str:
    """Returns one figure of the answer, by its row."""
    rows = [json.loads(line) for line in size(*arguments, "--json").splitlines()]
    return next(row["value"] for row in rows if row["what"] == what)


def test_the_examples_of_the_page_are_what_the_command_prints() -> None:
    examples = re.findall(r"^\$ inflight size (.+)\n((?:.+\n)+?)```", PAGE, flags=re.MULTILINE)
    assert [arguments for arguments, _ in examples] == ["--devices 10000 --rate 1/m", "--devices 1000000 --rate 1/h"]
    assert [shown.rstrip() for _, shown in examples] == [size(*arguments.split()) for arguments, _ in examples]


def test_the_page_has_every_constant_with_its_program() -> None:
    rows = re.findall(r"^\| (.+?) \| ([\d.,]+) (cores|ms|bytes) \| `(.+)` \|$", PAGE, flags=re.MULTILINE)
    shown = [(meaning, float(number.replace(",", "")), unit, program) for meaning, number, unit, program in rows]
    assert shown == [(one.meaning, pytest.approx(one.value, abs=0.5), one.unit, one.program) for one in CONSTANTS]
    small = [(one.value, shown[index][1]) for index, one in enumerate(CONSTANTS) if one.value < 100]
    assert [pair for pair in small if pair[0] != pair[1]] == []
    commands = dict(re.findall(r"^\| `([\w.]+)` \| `(.+?)`", PAGE, flags=re.MULTILINE))
    assert {one.program for one in CONSTANTS} == commands.keys()


def test_the_page_says_what_other_settings_save() -> None:
    arguments = ("--devices", "10000", "--rate", "1/m")
    whole, day, off = (
        float(value("disk: all topics", *arguments, *(f"--set={one}" for one in more)).removesuffix(" GiB"))
        for more in ((), ("topics.retention.ledger=1d",), ("engine.ledger=false",))
    )
    assert f"saves {whole - day:.1f} GiB, `engine.ledger = false` {whole - off:.1f} GiB" in PAGE
    many = ("--devices", "1000000", "--rate", "1/h", "--set", "limits.max_connections=100000")
    assert f"With `limits.max_connections = 100000` there are {value('gateway processes', *many)} processes" in PAGE


def test_the_processor_times_are_the_medians_of_the_kept_run() -> None:
    runs = [run["figures"] for run in json.loads(KEPT.read_text())["runs"] if run["name"] == "inflight"]
    assert len(runs) == 3

    def of(figure: str, part: str) -> float:
        """Returns milliseconds a message of the processes of a part; cores for `idle`. An empty part = all processes."""
        found = []
        for figures in runs:
            one = figures[figure]
            spent_s = sum(spent for name, spent in one["cpu_s"].items() if name.startswith(part))
            found.append(spent_s / one["wall_s"] if figure == "idle" else 1_000 * spent_s / one["messages"])
        return median(found)

    assert {part: round(of("idle", part), 3) for part in PARTS} == {part: one.value for part, one in IDLE.items()}
    measured = {(part, rate): round(of(f"rate_{rate}", part), 2) for part in PARTS for rate in RATES}
    assert measured == {key: pytest.approx(one.value, abs=0.011) for key, one in MESSAGE.items()}
    assert (round(of("burst_warm", ""), 2), round(of("connect_kept", ""), 2)) == (BURST.value, CONNECT.value)


@pytest.mark.parametrize("part", PARTS)
def test_more_messages_take_more_cores_without_a_jump(part: str) -> None:
    rates = [0.0, 1.0, 199.0, 200.0, 201.0, 999.0, 1_000.0, 1_001.0, 50_000.0]
    needed = [message_cores(part, rate) for rate in rates]
    assert needed == sorted(needed)
    assert needed[0] == 0
    assert all(abs(message_cores(part, rate + 0.5) - message_cores(part, rate - 0.5)) < 0.01 for rate in RATES)


def test_the_load_and_the_devices_each_can_decide_the_gateways() -> None:
    assert gateway_processes(FLEET, DEFAULTS) == 2
    assert gateway_processes(replace(FLEET, devices=45_000, messages_per_s=0.0), DEFAULTS) == 4
    busy = gateway_processes(replace(FLEET, messages_per_s=1.0), DEFAULTS)
    load = cores(replace(FLEET, messages_per_s=1.0), busy)["gateway"]
    assert load / (busy - 1) <= 0.55
    assert busy > 10


def test_payloads_replicas_and_settings_decide_the_disk() -> None:
    grown = bytes_a_day(FLEET, DEFAULTS)
    assert grown.keys() == {"messages", "events", "receipts", "ledger"}
    larger = bytes_a_day(replace(FLEET, payload_bytes=1_200), DEFAULTS)
    messages_a_day = 86_400 * FLEET.devices * FLEET.messages_per_s
    assert larger["messages"] - grown["messages"] == pytest.approx(3 * 1_000 * messages_a_day)
    assert (larger["receipts"], larger["ledger"]) == (grown["receipts"], grown["ledger"])
    one = bytes_a_day(FLEET, replace(DEFAULTS, replicas=1, receipts=False, ledger=False))
    assert one == {topic: pytest.approx(grown[topic] / 3) for topic in ("messages", "events")}
    assert "uplink" in bytes_a_day(replace(FLEET, publications_per_s=0.01), DEFAULTS)


def test_a_queue_ends_at_its_length_and_at_its_bytes() -> None:
    assert waiting_after_a_day(FLEET, DEFAULTS) == 1_000
    assert waiting_after_a_day(replace(FLEET, messages_per_s=1 / 3_600), DEFAULTS) == 24
    assert waiting_after_a_day(replace(FLEET, payload_bytes=10_000), DEFAULTS) == 104
    assert waiting_after_a_day(FLEET, replace(DEFAULTS, max_queue_len=0)) == 1_440


def test_what_is_kept_for_ever_has_no_size() -> None:
    shown = value("disk: all topics", "--devices", "10", "--rate", "1/m", "--set", "topics.retention.messages=never")
    assert shown == "grows for ever"


def test_the_configuration_decides_what_is_computed() -> None:
    settings = load_settings(None, ["topics.replication_factor=2", "engine.receipts=false", "limits.max_connections=50000"])
    found = deployment_of(settings)
    assert (found.replicas, found.receipts, found.max_connections, DEFAULTS.replicas) == (2, False, 50_000, 3)


@pytest.mark.parametrize(("text", "rate"), [("1/m", 1 / 60), ("5/h", 5 / 3_600), ("0.5/s", 0.5), ("12/d", 12 / 86_400)])
def test_a_rate_has_a_unit(text: str, rate: float) -> None:
    assert per_second("--rate", text) == pytest.approx(rate)


@pytest.mark.parametrize("arguments", [("--rate", "1"), ("--rate", "fast"), ("--rate", "1/m", "--keep-alive", "0s")])
def test_what_cannot_be_computed_is_refused_with_its_option(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["size", "--devices", "10", *arguments])
    assert done.exit_code == 2
    assert arguments[-2] in done.output
