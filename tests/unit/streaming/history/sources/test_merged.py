from typing import Any

import pytest

from state.records.record import position
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.history.sources import merged as module
from streaming.history.sources.delta import DeltaSource
from streaming.history.sources.merged import MergedSource, merged
from streaming.history.sources.source import MessageRows, SourceLimits

T0 = 1_790_000_000_000


def ledger(transition: str, batch_ms: int = T0, offset: int = 0) -> dict[str, Any]:
    return {
        "client_id": "c", "message_id": "m", "time": None, "transition": transition, "attempt": 1, "packet_id": None,
        "outcome": None, "reason_code": 0, "detail": "", "batch_ms": batch_ms, "row_index": 0, "kafka_partition": 0,
        "kafka_offset": offset, "fast_path": None,
    }  # fmt: skip


def test_a_row_that_both_have_is_there_once() -> None:
    archived = MessageRows(ledger=[ledger("accepted")], dead_letters=[{"dead_letter_id": "d"}])
    both, later = ledger("accepted", offset=7), ledger("sent", T0 + 1)
    newer = MessageRows(ledger=[both, later], dead_letters=[{"dead_letter_id": "d"}, {"dead_letter_id": "e"}])
    found = merged(archived, newer)
    assert [row["transition"] for row in found.ledger] == ["accepted", "sent"]
    assert [row["dead_letter_id"] for row in found.dead_letters] == ["d", "e"]


class KafkaOf:
    """Kafka's topics with one submitted message."""

    asked: list[SourceLimits]
    is_away = False

    def __init__(self, settings: Settings, limits: SourceLimits, on_progress: object) -> None:
        self.asked.append(limits)

    def of_message(self, message_id: str) -> MessageRows:
        if self.is_away:
            raise KafkaUnreachable("Kafka is away")
        return MessageRows(submitted=[{"client_id": "c", "kafka_topic": position("t", 0, 0)}])

    def described(self) -> list[str]:
        return ["from the topics of Kafka"]

    def not_found(self, what: str) -> str:
        return f"no {what} in Kafka"


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> MergedSource:
    monkeypatch.setattr(KafkaOf, "asked", [], raising=False)
    monkeypatch.setattr(module, "KafkaSource", KafkaOf)
    monkeypatch.setattr(DeltaSource, "newest_ms", lambda self: T0)
    monkeypatch.setattr(DeltaSource, "of_message", lambda self, message_id: MessageRows())
    return MergedSource(Settings(), SourceLimits(), lambda done, total: None)


def test_what_only_kafka_has_yet_is_found(source: MergedSource) -> None:
    assert source.of_message("m").submitted
    (limits,) = KafkaOf.asked
    assert limits.since_ms == T0 - 600_000
    assert "from the topics of Kafka" in source.described()
    assert "in Kafka" in source.not_found("message")


def test_an_archive_of_a_clock_that_is_ahead_hides_nothing(source: MergedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaSource, "newest_ms", lambda self: 4 * T0)
    monkeypatch.setattr(module.time, "time_ns", lambda: T0 * 1_000_000)
    source.of_message("m")
    assert KafkaOf.asked[0].since_ms == T0 - 600_000


def test_the_archive_answers_alone_while_kafka_is_away(source: MergedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaOf, "is_away", True)
    with pytest.raises(KafkaUnreachable):
        source.of_message("m")
    monkeypatch.setattr(DeltaSource, "of_message", lambda self, message_id: MessageRows(ledger=[ledger("sent")]))
    assert source.of_message("m").ledger
    assert source.described()[-1] == "without what is newer: Kafka is away"
