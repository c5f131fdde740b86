"""Lets one process live under each `group_instance_id`: a static member of a group, of which Kafka knows no more than its name.

Kafka gives a name's partitions to the newest process that joins under it, and fences the older one. If the older one joined
again, the two would fence each other for ever. So:
1. A process that is fenced ends (`GroupInstanceTaken`).
2. A process that starts does not join while another one lives under the name (`await_instance_free`): it must not fence that one.

Kafka keeps a killed member's name for `session_timeout_ms`, and in the group it looks like a living one. So a member changes the
metadata of its commits once a second (`MemberStamps`). A name whose stamp does not change for `WATCH_S` belongs to nobody. A
stamp that says that its process has left makes the name free at once. Processes of Inflight 0.1.0 have no stamps; the newer one
fences them, and they join again.
"""

import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client, reason_of
from state.errors import InflightError

WATCH_S: Final = 3.0
STAMP_INTERVAL_S: Final = 1.0
_POLL_S: Final = 0.5
_LEFT: Final = "left"
_ANSWER_S: Final = 5.0

_log: Final = structlog.get_logger(__name__)


class GroupInstanceTaken(InflightError):
    """Another process lives under this one's `group_instance_id`."""


class MemberStamps:
    """Makes the metadata of one member's commits, a new text each time."""

    def __init__(self, group_instance_id: str) -> None:
        self._prefix = f"{group_instance_id} {secrets.token_hex(4)}"
        self._left = f"{group_instance_id} {_LEFT}"
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return f"{self._prefix}.{self._count}"

    def left(self) -> str:
        """Returns the stamp of the last commit of a process that stops."""
        return self._left


def fenced(group_id: str, group_instance_id: str | None) -> GroupInstanceTaken:
    return GroupInstanceTaken(
        f"another process has joined the consumer group {group_id} as {group_instance_id!r} and has taken the partitions over; "
        "this one stops. Give each process a group_instance_id of its own, or none"
    )


def await_instance_free(
    *, bootstrap_servers: str, group_id: str, group_instance_id: str | None, options: Mapping[str, Any]
) -> None:
    """Waits until no other process lives under the name: a little longer than WATCH_S at most. Raises GroupInstanceTaken.

    Without an answer of Kafka, for instance where the group may not be described, the process goes on: rule 1 still holds.
    """
    if group_instance_id is None:
        return
    try:
        taken = _lives(
            new_client(AdminClient, client_config(bootstrap_servers, options, ClientErrors())), group_id, group_instance_id
        )
    except (KafkaException, KafkaFailed) as error:
        # A coordinator that is just starting passes by itself; a missing right does not.
        is_forbidden = isinstance(error, KafkaException) and error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        log = partial(_log.warning, action=f"allow this user to describe the group {group_id}") if is_forbidden else _log.debug
        log("group_not_described", group=group_id, error=str(reason_of(error)))
        return
    if taken is not None:
        raise GroupInstanceTaken(
            f"another process, at {taken}, is in the consumer group {group_id} as {group_instance_id!r}: stop that one, or give "
            "each process a group_instance_id of its own, or none"
        )


def _lives(admin: Any, group_id: str, group_instance_id: str) -> str | None:
    """Returns the address of the process that lives under the name; None = there is none."""
    deadline = time.monotonic() + WATCH_S
    first: set[str] | None = None
    while True:
        host = _host(admin, group_id, group_instance_id)
        if host is None:
            return None
        stamps = {text for text in _metadata(admin, group_id) if text.startswith(f"{group_instance_id} ")}
        first = first or stamps
        if stamps != first:
            return host
        if stamps == {f"{group_instance_id} {_LEFT}"} or time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_S)


def _host(admin: Any, group_id: str, group_instance_id: str) -> str | None:
    """Returns the member's address when it joined; None without such a member, or such a group. Raises KafkaException."""
    described = admin.describe_consumer_groups([group_id], request_timeout=_ANSWER_S)[group_id].result()
    hosts = (member.host.lstrip("/") for member in described.members if member.group_instance_id == group_instance_id)
    return next(hosts, None)


def _metadata(admin: Any, group_id: str) -> list[str]:
    """Returns the metadata of all commits of the group. Raises KafkaException."""
    asked = [ConsumerGroupTopicPartitions(group_id)]
    committed = admin.list_consumer_group_offsets(asked, request_timeout=_ANSWER_S)[group_id].result()
    return [partition.metadata or "" for partition in committed.topic_partitions]
