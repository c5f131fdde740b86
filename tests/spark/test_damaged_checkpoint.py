"""Damage to the files of an engine's checkpoint is named before Spark starts, with what is lost and what to do."""

import shutil
import time
from pathlib import Path

import pytest

from state.commands import SendPublish
from tests.spark.child_engine import Engine, engine
from tests.spark.conftest import newest_batch
from tests.spark.engine_topics import EngineTopics
from tests.support.shared import SharedKafka

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


@pytest.mark.promise("damaged-checkpoint")
def test_a_damaged_checkpoint_names_its_file_and_what_to_do(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "damaged")
    settings = topics.settings(tmp_path)
    sessions, copy = tmp_path / "checkpoint" / "sessions", tmp_path / "copy"
    with engine(settings) as first:
        topics.connect(1)
        topics.deliver(b"before", before=0)
        assert first.stop() == 0
    shutil.copytree(sessions, copy)

    def refused() -> str:
        began_s = time.monotonic()
        said = Engine(settings).await_failure()
        print(f"refused after {time.monotonic() - began_s:.1f} s")
        assert "DamagedCheckpoint" in said, said[-3_000:]
        assert "othing is lost: start" not in said
        return said

    shutil.rmtree(sessions / "state")
    said = refused()
    assert f"{sessions}/state: missing. It holds all sessions, their queues and timers" in said
    assert "docs/operate/upgrade.md, A copy of the checkpoint" in said

    shutil.rmtree(sessions)
    shutil.copytree(copy, sessions)
    number = newest_batch(sessions / "commits")
    (sessions / "commits" / str(number)).write_bytes(b"")
    assert f"commits/{number}: empty" in refused()
    for name in (str(number), f".{number}.crc"):  # as the error says
        (sessions / "commits" / name).unlink()
    with engine(settings) as second:
        topics.send(b"after")
        sent = topics.commands(lambda found: any(isinstance(one, SendPublish) and one.payload == b"after" for one in found))
        assert second.stop() == 0
    # The micro-batch was executed once more, so its commands may be there twice: the same ones.
    numbers = {(one.sequence, one.payload) for one in sent if isinstance(one, SendPublish)}
    assert sorted(payload for _, payload in numbers) == [b"after", b"before"]
