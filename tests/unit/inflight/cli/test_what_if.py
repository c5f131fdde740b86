"""`inflight what-if` without Kafka: its options, and what it prints."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inflight.cli import app
from streaming.config.settings import Settings
from streaming.history.times import shown_utc
from streaming.what_if import job
from streaming.what_if.answer import WhatIfAnswer
from streaming.what_if.comparison import Comparison, Example, GroupTally, LeftOut

RUNNER = CliRunner()
SINCE_MS = 1_700_000_000_000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Answers without Spark, and collects the questions."""
    questions: list[tuple[Any, ...]] = []

    def answer(*question: Any) -> WhatIfAnswer:
        questions.append(question)
        lamps = GroupTally(
            clients=2, before={"delivered": 9}, after={"delivered": 7, "maxlen": 2}, changed={"delivered → maxlen": 2}
        )
        found = Comparison(groups={"lamp-*": lamps}, verified=9)
        found.leave_out(LeftOut.BEGUN_BEFORE, Example(client_id="c", message_id="m", before="", after="delivered"))
        return WhatIfAnswer(
            comparison=found,
            since_ms=SINCE_MS,
            until_ms=SINCE_MS,
            width_ms=1,
            batches=3,
            records=20,
            is_recorded=False,
            took_s=1.0,
        )

    monkeypatch.setattr(job, "what_if", answer)
    monkeypatch.setattr("inflight.local.spark_jars.spark_jars", lambda: None)
    return questions


def what_if(directory: Path, *options: str, code: int = 0) -> str:
    done = RUNNER.invoke(app, ["what-if", "--data-dir", str(directory), *options])
    assert done.exit_code == code, done.output
    return done.output


def test_the_policy_wins_over_everything_else(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    policy = tmp_path / "other.toml"
    policy.write_text("[session]\nmax_mqueue_len = 3\n[[profiles]]\nclients = 'lamp-*'\n")
    what_if(tmp_path, "--policy", str(policy), "--set", "max_mqueue_len=7", "--set", "max_inflight=2")
    present, other, _, groups, *_ = asked[0]
    assert isinstance(present, Settings)
    assert (present.session.max_mqueue_len, other.session.max_mqueue_len, other.session.max_inflight) == (7, 3, 2)
    assert (groups, [pattern for pattern, _ in other.session_profiles]) == ([], ["lamp-*"])


def test_a_policy_has_only_what_sessions_depend_on(tmp_path: Path) -> None:
    policy = tmp_path / "other.toml"
    policy.write_text("[gateway]\nmax_connections = 3\n")
    assert "gateway changes nothing that is replayed" in " ".join(what_if(tmp_path, "--policy", str(policy), code=2).split())


def test_a_policy_that_is_not_there_is_named_with_its_option(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    done = RUNNER.invoke(app, ["what-if", "--data-dir", str(tmp_path), "--policy", str(missing)])
    assert f"--policy {missing}: cannot be read: No such file" in str(done.exception)
    assert "give another file with --policy" in str(done.exception)


def test_a_period_is_given_by_durations(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    what_if(tmp_path, "--since", "2h", "--until", "1h", "--warm-up", "30m", "--group", "a-*", "--group", "b")
    _, _, period, groups, *_ = asked[0]
    assert (period.until_ms - period.since_ms, period.warm_up_ms, groups) == (3_600_000, 1_800_000, ["a-*", "b"])
    assert "--since soon" in what_if(tmp_path, "--since", "soon", code=2)


def test_what_changes_and_what_is_left_out_is_said(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    lines = [" ".join(line.split()) for line in what_if(tmp_path).splitlines()]
    assert f"from {shown_utc(SINCE_MS)} to {shown_utc(SINCE_MS)} UTC: 3 micro-batches" in lines
    assert "lamp-* delivered 9 7 -2" in lines
    assert "lamp-* maxlen 0 2 +2" in lines
    assert [line.split()[0] for line in lines if line.endswith("9 7 -2")] == ["lamp-*"], "each row once"
    assert "2 messages: delivered → maxlen" in lines
    assert any(line.startswith("1 client left out: their sessions began before") for line in lines)
    assert any("cut by the times of the ledger" in line for line in lines)
