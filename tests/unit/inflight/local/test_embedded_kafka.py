"""A broker that cannot be started says why; the broker itself: tests/integration/kafka."""

import errno
from pathlib import Path
from typing import cast

import pytest

from inflight.local import embedded_kafka
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.errors import ChildProcessFailed
from inflight.local.jars import Jars

NOTHING = cast(Jars, None)
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("is_full", "advice"),
    [(True, "is full: make room there. Nothing that Kafka has confirmed is lost."), (False, "if the data is damaged, move")],
)
def test_a_start_that_cannot_write_fails_with_an_instruction(
    is_full: bool, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_: EmbeddedKafka) -> Path:
        raise NO_SPACE

    monkeypatch.setattr(EmbeddedKafka, "_write_properties", write)
    monkeypatch.setattr(embedded_kafka, "is_full", lambda location: is_full)
    with pytest.raises(ChildProcessFailed, match="No space left on device") as raised:
        EmbeddedKafka(tmp_path, jars=NOTHING).start()
    assert advice in str(raised.value)


def test_what_a_killed_broker_has_unpacked_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "kafka" / "tmp" / "libzstd-jni.so"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    commands: list[list[str]] = []
    monkeypatch.setattr(EmbeddedKafka, "_java", lambda self, *options: list(options))
    monkeypatch.setattr(EmbeddedKafka, "_format", lambda self: None)
    monkeypatch.setattr(embedded_kafka, "archive_options", lambda name, jars: ())
    monkeypatch.setattr(embedded_kafka, "kafka_classpath", lambda jars: "")
    monkeypatch.setattr(embedded_kafka, "start_child", lambda command, **options: commands.append(command))
    EmbeddedKafka(tmp_path, jars=NOTHING).spawn()
    assert commands
    assert list(left.parent.iterdir()) == []
