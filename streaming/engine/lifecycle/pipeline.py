"""The configuration → what the query `sessions` has to know."""

from state.dead_letters.exchanges import Exchanges
from state.dead_letters.policy import permitted
from state.records.settings import RecordLimits, Topics
from streaming.config.settings import Settings
from streaming.engine.operator.settings import PipelineSettings, Profile
from streaming.engine.spark_session import keeps_keys_in_order


def pipeline_settings(settings: Settings, *, commands_partitions: int) -> PipelineSettings:
    """The part of the configuration that the Python workers need. commands_partitions: as Kafka has them."""
    engine, topics = settings.engine, settings.topics
    return PipelineSettings(
        commands_partitions=commands_partitions,
        topics=Topics(
            messages=topics.messages,
            events=topics.events,
            commands=topics.commands,
            uplink=topics.uplink,
            receipts=topics.receipts,
            dead_letters=topics.dead_letters,
            ledger=topics.ledger,
            throttle=topics.throttle,
        ),
        session=settings.session.to_session_settings(),
        profiles=tuple(Profile(pattern=pattern, session=session) for pattern, session in settings.session_profiles),
        policies=permitted(
            [policy.to_policy() for policy in settings.policies],
            [permission.to_permission() for permission in settings.permissions],
        ),
        exchanges=Exchanges(declared=tuple(exchange.to_exchange() for exchange in settings.exchanges)),
        limits=RecordLimits(
            max_payload_bytes=engine.max_payload_bytes,
            max_headers_bytes=engine.max_headers_bytes,
            max_record_bytes=engine.max_record_bytes,
            max_client_id_bytes=settings.gateway.max_client_id_bytes,
        ),
        receipts=engine.receipts,
        ledger=engine.ledger,
        max_timers_per_partition=engine.max_timers_per_partition if keeps_keys_in_order(engine.spark) else 0,
        lean_worker=engine.lean_worker,
    )
