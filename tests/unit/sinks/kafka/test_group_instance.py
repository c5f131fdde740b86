"""sinks.kafka.group_instance. With two real gateways: tests/integration/gateway/test_group_instance.py."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from sinks.kafka import group_instance
from sinks.kafka.group_instance import GroupInstanceTaken, MemberStamps, await_instance_free


class Admin:
    """stamps: what the group's commits say at each look."""

    def __init__(self, member: str | None, stamps: Callable[[], list[str]]) -> None:
        self.member, self.stamps = member, stamps
        self.looks = 0
        self.error: Exception | None = None

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Any]:
        if self.error is not None:
            return {"g": Failed(self.error)}
        self.looks += 1
        members = [] if self.member is None else [SimpleNamespace(group_instance_id=self.member, host="/10.0.0.7")]
        return {"g": Done(SimpleNamespace(members=members))}

    def list_consumer_group_offsets(self, asked: list[ConsumerGroupTopicPartitions], **_: Any) -> dict[str, Any]:
        partitions = [TopicPartition("t", number, 0, text) for number, text in enumerate(self.stamps())]
        return {asked[0].group_id: Done(SimpleNamespace(topic_partitions=partitions))}


class Done:
    def __init__(self, result: Any) -> None:
        self.result = lambda: result


class Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def result(self) -> Any:
        raise self.error


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[[Admin], None]:
    monkeypatch.setattr(group_instance, "_POLL_S", 0.001)
    monkeypatch.setattr(group_instance, "WATCH_S", 0.3)

    def look(admin: Admin) -> None:
        monkeypatch.setattr(group_instance, "AdminClient", lambda _: admin)
        await_instance_free(bootstrap_servers="x", group_id="g", group_instance_id="a", options={})

    return look


@pytest.mark.promise("group-instance-id")
def test_a_name_whose_stamp_changes_is_in_use(look: Callable[[Admin], None]) -> None:
    stamps = MemberStamps("a")
    with pytest.raises(GroupInstanceTaken, match=r"another process, at 10\.0\.0\.7, .* as 'a': stop that one"):
        look(Admin("a", lambda: [stamps.next(), "b 1.1"]))


def test_a_name_whose_stamp_stands_still_is_free_after_a_while(look: Callable[[Admin], None]) -> None:
    others = itertools.count()
    admin = Admin("a", lambda: ["a 12.1", f"ab {next(others)}", ""])
    look(admin)
    assert admin.looks > 1


@pytest.mark.parametrize("member", [None, "b"])
def test_a_name_that_is_not_in_the_group_is_free_at_once(look: Callable[[Admin], None], member: str | None) -> None:
    admin = Admin(member, lambda: ["a 12.1"])
    look(admin)
    assert admin.looks == 1


def test_a_name_with_the_stamp_of_a_departure_is_free_at_once(look: Callable[[Admin], None]) -> None:
    stamp = MemberStamps("a").left()
    admin = Admin("a", lambda: [stamp, stamp])
    look(admin)
    assert admin.looks == 1


@pytest.mark.parametrize("error", [KafkaError._TIMED_OUT, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_without_an_answer_the_process_starts(look: Callable[[Admin], None], error: int) -> None:
    admin = Admin("a", list)
    admin.error = KafkaException(KafkaError(error))
    look(admin)


def test_without_a_name_there_is_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_instance, "AdminClient", None)
    await_instance_free(bootstrap_servers="x", group_id="g", group_instance_id=None, options={})


def test_two_processes_under_one_name_never_stamp_alike() -> None:
    first, second = MemberStamps("a"), MemberStamps("a")
    assert len({stamps.next() for stamps in (first, second) for _ in range(3)}) == 6


@pytest.mark.parametrize(
    ("code", "level"), [(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "debug"), (KafkaError.GROUP_AUTHORIZATION_FAILED, "warning")]
)
def test_only_what_somebody_can_mend_is_a_warning(look: Callable[[Admin], None], code: int, level: str) -> None:
    admin = Admin("a", list)
    admin.error = KafkaException(KafkaError(code))
    with capture_logs() as logs:
        look(admin)
    [line] = logs
    assert (line["event"], line["log_level"]) == ("group_not_described", level)
    assert ("action" in line) == (level == "warning")
