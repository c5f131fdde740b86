"""The settings of a micro-batch after any history: planned, committed, recorded or damaged."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from state.dead_letters.exchanges import Binding, Exchange, Exchanges, ExchangeType
from state.dead_letters.policy import Policy
from state.model import Destination, DestinationKind, Outcome
from state.settings import BackoffSettings, RecordLimits, RetryMqtt5, SessionSettings
from streaming.engine.errors import UnreadableSettings
from streaming.engine.lifecycle.settings_log import SettingsLog
from streaming.engine.operator.by_batch import BatchSettings
from streaming.engine.operator.pipeline import PipelineSettings, SessionProfile
from tests.unit.streaming.engine.memory_files import MemoryFiles

FIRST = PipelineSettings(commands_partitions=4)
SECOND = replace(FIRST, session=SessionSettings(retry_mqtt5=RetryMqtt5.TIMER))
THIRD = replace(FIRST, receipts=False)


class Files(MemoryFiles):
    def start(self, settings: PipelineSettings) -> BatchSettings:
        return SettingsLog(self).put_in_force(settings)


def lines(files: Files, settings: PipelineSettings) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        files.start(settings)
    return [dict(line) for line in logs]


def test_a_new_checkpoint_has_its_settings_from_the_first_micro_batch_on() -> None:
    files = Files()
    assert files.start(FIRST) == BatchSettings(current=FIRST)
    assert list(files.found) == ["0"]
    files.planned(0, committed=False)
    assert files.start(FIRST) == BatchSettings(current=FIRST, from_batch=1)
    assert list(files.found) == ["0"]


@pytest.mark.promise("same-bytes-again")
def test_a_micro_batch_that_is_not_committed_keeps_its_settings() -> None:
    files = Files()
    files.start(FIRST)
    files.planned(7, committed=False)
    made = files.start(SECOND)
    assert made == BatchSettings(current=SECOND, from_batch=8, before=FIRST)
    assert [made.of(batch_id) for batch_id in (7, 8, 9)] == [FIRST, SECOND, SECOND]
    assert sorted(files.found) == ["0", "8"]


def test_a_micro_batch_that_is_planned_anew_has_the_new_settings() -> None:
    files = Files()
    files.start(FIRST)
    files.planned(7, committed=False)
    assert SettingsLog(files).put_in_force(SECOND, is_planned_anew=True) == BatchSettings(current=SECOND, from_batch=7)
    assert files.start(FIRST) == BatchSettings(current=FIRST, from_batch=8, before=SECOND)


def test_after_a_commit_new_settings_hold_at_once() -> None:
    files = Files()
    files.start(FIRST)
    files.planned(7, committed=True)
    assert files.start(SECOND) == BatchSettings(current=SECOND, from_batch=8)


def test_what_the_dead_letter_topics_take_now_holds_for_every_micro_batch() -> None:
    """A broker whose limit was lowered would refuse the same dead letter for ever."""
    files = Files()
    files.start(FIRST)
    files.planned(7, committed=False)
    small = replace(FIRST, limits=RecordLimits(dead_letter_topic_bytes=50_000))
    made = files.start(small)
    assert [made.of(batch_id).limits.max_dead_letter_bytes for batch_id in (7, 8)] == [50_000, 50_000]
    files.planned(8, committed=False)
    assert [files.start(FIRST).of(batch_id).limits.max_dead_letter_bytes for batch_id in (8, 9)] == [50_000, 900_000]


def test_settings_that_no_micro_batch_has_got_are_replaced() -> None:
    """The engine was killed between the record of its settings and its next micro-batch; then the configuration changed again."""
    files = Files()
    files.start(FIRST)
    files.planned(7, committed=False)
    files.start(SECOND)
    assert files.start(THIRD) == BatchSettings(current=THIRD, from_batch=8, before=FIRST)
    assert files.start(FIRST) == BatchSettings(current=FIRST, from_batch=8)
    files.planned(8, committed=False)
    assert files.start(SECOND).before == FIRST


def test_unneeded_files_are_removed() -> None:
    files = Files()
    for batch_id, settings in ((3, FIRST), (5, SECOND), (9, THIRD), (12, FIRST)):
        files.planned(batch_id, committed=False)
        files.start(settings)
        assert len(files.found) <= 2
    assert sorted(files.found, key=int) == ["10", "13"]
    files.planned(20, committed=True)
    files.start(FIRST)
    assert list(files.found) == ["13"]


def test_a_checkpoint_without_records_continues_with_present_settings() -> None:
    files = Files()
    files.planned(7, committed=False)
    said = lines(files, FIRST)
    assert [line["event"] for line in said] == ["settings_unknown", "settings_in_force"]
    assert said[0]["batch"] == 7
    assert sorted(files.found) == ["8"]
    assert files.start(FIRST) == BatchSettings(current=FIRST, from_batch=8)


def test_the_log_lists_changed_settings_and_their_first_micro_batch() -> None:
    files = Files()
    files.start(FIRST)
    assert lines(files, FIRST) == []
    files.planned(4, committed=True)
    (said,) = lines(files, replace(SECOND, receipts=False))
    assert (said["event"], said["from_batch"], said["changed"]) == ("settings_in_force", 5, ["receipts", "session.retry_mqtt5"])


def test_everything_that_can_be_set_is_recorded_as_it_is() -> None:
    policy = Policy(name="p", dead_letter_reasons=frozenset((Outcome.EXPIRED,)), owner="o", owner_writes=("x",), message_ttl_ms=5)
    binding = Binding(destination=Destination(kind=DestinationKind.CLIENT, name="c"), key="k")
    rich = replace(
        FIRST,
        session=SessionSettings(backoff=BackoffSettings(multiplier=2.5), later_retry_intervals_ms=(1, 2)),
        profiles=(SessionProfile(pattern="a*", session=SessionSettings(max_inflight=1, policy=policy)),),
        policies=(policy,),
        exchanges=Exchanges(declared=(Exchange(name="x", type=ExchangeType.TOPIC, bindings=(binding,)),)),
    )
    files = Files()
    files.start(rich)
    files.planned(0, committed=False)
    before = files.start(FIRST).before
    assert before == rich
    assert hash(before) == hash(rich)


def test_the_lineage_of_a_checkpoint_keeps_its_name_in_the_files() -> None:
    files = Files()
    files.start(replace(FIRST, checkpoint_lineage="5eed"))
    assert msgspec.json.decode(files.found["0"])["settings"]["history"] == "5eed"
    files.planned(0, committed=False)
    before = files.start(FIRST).before
    assert before is not None
    assert before.checkpoint_lineage == "5eed"


def test_unknown_fields_are_ignored_and_missing_fields_have_defaults() -> None:
    files = Files()
    files.start(SECOND)
    record = msgspec.json.decode(files.found["0"])
    record["settings"]["session"]["of_a_newer_version"] = 1
    record["of_a_newer_version"] = 1
    del record["settings"]["ledger"]
    files.found["0"] = msgspec.json.encode(record)
    files.planned(0, committed=False)
    assert files.start(FIRST).before == SECOND


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"{}",
        b'{"version": 2, "settings": {"commands_partitions": 1}}',
        b'{"version": 1, "settings": {"commands_partitions": 1, "session": {"overflow": "burn"}}}',
        b'{"version": 1, "settings": {"commands_partitions": 1, "limits": {"max_payload_bytes": 900001}}}',
    ],
)
def test_settings_that_cannot_be_read_are_an_error_where_they_are_needed(data: bytes) -> None:
    files = Files(found={"3": data})
    files.planned(7, committed=False)
    with pytest.raises(UnreadableSettings, match=r"micro-batch 7 .* /checkpoint/3 .* remove /checkpoint/"):
        files.start(FIRST)
    files.planned(7, committed=True)
    assert files.start(FIRST) == BatchSettings(current=FIRST, from_batch=8)
    files.planned(8, committed=False)
    assert files.start(FIRST) == BatchSettings(current=FIRST, from_batch=9)


def test_settings_that_do_not_affect_records_are_the_current_ones() -> None:
    """The recorded number of partitions must not be used: Kafka's producer would wait for a deleted partition for ever."""
    files = Files()
    files.start(SECOND)
    files.planned(0, committed=False)
    now = replace(FIRST, lean_worker=False, commands_partitions=2)
    assert files.start(now).before == replace(SECOND, lean_worker=False, commands_partitions=2)
