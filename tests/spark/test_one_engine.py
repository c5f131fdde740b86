"""Engines on the same topics: one works, another one waits or refuses, and one that was taken over stops."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.child_engine import Engine, engine
from tests.spark.engine_topics import EngineTopics
from tests.support.shared import SharedKafka

pytestmark = pytest.mark.faults


@pytest.mark.promise("second-engine")
def test_an_engine_with_another_checkpoint_does_not_start_beside_one(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "beside")
    with engine(topics.settings(tmp_path / "first")) as first:
        topics.connect(1)
        topics.deliver(b"1", before=0)
        said = Engine(topics.settings(tmp_path / "second")).await_failure()
        assert "EngineRuns" in said
        assert "another engine works on the topics beside.*" in said
        topics.deliver(b"2", before=1)
        assert first.stop() == 0
    assert topics.outcomes(2) == {"1": "delivered", "2": "delivered"}


@pytest.mark.promise("second-engine")
def test_an_engine_is_fenced_by_one_with_a_copy_of_its_checkpoint(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "copied")
    with engine(topics.settings(tmp_path / "first")) as first:
        topics.connect(1)
        topics.deliver(b"1", before=0)
        assert first.stop() == 0
    shutil.copytree(tmp_path / "first" / "checkpoint", tmp_path / "copy" / "checkpoint")
    with engine(topics.settings(tmp_path / "first")) as first, engine(topics.settings(tmp_path / "copy")) as copy:
        said = first.await_failure()
        assert "EngineFenced" in said
        topics.deliver(b"2", before=1)
        assert copy.stop() == 0


@pytest.mark.promise("new-checkpoint")
def test_a_new_checkpoint_sends_nothing_again(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "renewed")
    with engine(topics.settings(tmp_path / "first")) as first:
        topics.connect(1)
        for number in range(3):
            topics.deliver(b"%d" % number, before=number)
        assert first.stop() == 0
    topics.send(b"unread")
    with engine(topics.settings(tmp_path / "new")) as new:
        topics.connect(2)
        assert [publish.payload for publish in topics.sent(4)] == [b"0", b"1", b"2", b"unread"]
        topics.acknowledge(topics.sent(4)[-1])
        topics.outcomes(4)
        assert new.stop() == 0
    assert Counter(publish.payload for publish in topics.sent(4)) == {b"0": 1, b"1": 1, b"2": 1, b"unread": 1}
