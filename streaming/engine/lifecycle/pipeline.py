"""The configuration → what the query `sessions` has to know."""

from state.dead_letters.exchanges import Exchanges
from state.dead_letters.policy import permitted
from state.records.settings import Topics
from streaming.config.settings import Settings
from streaming.engine.operator.settings import PipelineSettings, Profile
from streaming.engine.spark_session import keeps_keys_in_order


def pipeline_settings(settings: Settings, *, commands_partitions: int, history: str = "") -> PipelineSettings:
    """The part of the configuration that the Python workers need. commands_partitions: as Kafka has them.

    history: of `history_of` (streaming/engine/ownership/checkpoint_lineage.py).
    """
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
            routes=topics.routes,
        ),
        session=settings.session_settings,
        profiles=tuple(Profile(pattern=pattern, session=session) for pattern, session in settings.session_profiles),
        policies=permitted(settings.policies, settings.permissions),
        exchanges=Exchanges(declared=settings.exchanges),
        limits=settings.record_limits,
        receipts=engine.receipts,
        ledger=engine.ledger,
        max_timers_per_partition=engine.max_timers_per_partition if keeps_keys_in_order(engine.spark) else 0,
        stop_at_newer_events=engine.stop_at_newer_events,
        history=history,
        lean_worker=engine.lean_worker,
    )
