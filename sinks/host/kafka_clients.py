"""The Kafka clients of a process that hosts connections."""

from collections.abc import Callable
from typing import Final

from sinks.host.broker_clock import BrokerClock
from sinks.host.clock_skew import ClockSkew
from sinks.kafka.append import KafkaEventLog
from sinks.kafka.host_settings import FETCH_MAX_WAIT_MS, PRODUCER_LINGER_MS, HostSettings
from sinks.kafka.tail import KafkaCommandTail

_RECORD_OVERHEAD_BYTES: Final = 65_536


def event_log(
    settings: HostSettings,
    clock: BrokerClock,
    skew: ClockSkew,
    *,
    on_partitions_added: Callable[[], None],
    took: Callable[[float], None],
) -> KafkaEventLog:
    """Makes the event log of a process.

    Args:
        clock: Observes the renewals of the lease.
        skew: Gets the difference of the machine's clock from the brokers' after each renewal.
        on_partitions_added: As in KafkaEventLog.
        took: As in KafkaEventLog.
    """

    def observe(broker_ms: int, took_ms: float) -> None:
        clock.observe(broker_ms, took_ms)
        skew.measured(clock.skew_s())

    return KafkaEventLog(
        bootstrap_servers=settings.bootstrap_servers,
        linger_ms=PRODUCER_LINGER_MS,
        timeout_ms=settings.append_timeout_ms,
        max_request_bytes=settings.max_packet_size_bytes + _RECORD_OVERHEAD_BYTES,
        options=settings.kafka_options,
        on_partitions_added=on_partitions_added,
        took=took,
        observed_topic=settings.leases_topic,
        observe=observe,
    )


def command_tail(settings: HostSettings, on_taken: Callable[[], None]) -> KafkaCommandTail:
    """Makes the command tail of a process.

    Args:
        on_taken: As in KafkaCommandTail.
    """
    return KafkaCommandTail(
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.commands_topic,
        group_id=settings.group_id,
        group_instance_id=settings.group_instance_id,
        session_timeout_ms=settings.group_session_timeout_ms,
        fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
        options=settings.kafka_options,
        on_taken=on_taken,
    )
