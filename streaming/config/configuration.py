"""The sections of the configuration, each with its defaults."""

from pydantic import BaseModel

from streaming.config.access_sections import LimitsSection, ListenerSection, RuleSection
from streaming.config.mqtt_sections import BridgeSection, FastPathSection, GatewaySection
from streaming.config.policy_sections import ExchangeSection, PermissionSection, PolicySection
from streaming.config.sections import (
    ArchiveSection,
    ConsoleSection,
    EngineSection,
    KafkaSection,
    MetricsSection,
    ProfileSection,
    SessionSection,
    ThrottleSection,
    TopicsSection,
)


class Configuration(BaseModel):
    """What a configuration can say. streaming/config/settings.py reads and checks it."""

    kafka: KafkaSection = KafkaSection()
    topics: TopicsSection = TopicsSection()
    engine: EngineSection = EngineSection()
    throttle: ThrottleSection = ThrottleSection()
    archive: ArchiveSection = ArchiveSection()
    gateway: GatewaySection = GatewaySection()
    limits: LimitsSection = LimitsSection()
    fast_path: FastPathSection = FastPathSection()
    bridge: BridgeSection = BridgeSection()
    metrics: MetricsSection = MetricsSection()
    console: ConsoleSection = ConsoleSection()
    session: SessionSection = SessionSection()
    profiles: tuple[ProfileSection, ...] = ()
    exchanges: tuple[ExchangeSection, ...] = ()
    policies: tuple[PolicySection, ...] = ()
    permissions: tuple[PermissionSection, ...] = ()
    listeners: tuple[ListenerSection, ...] = ()
    rules: tuple[RuleSection, ...] = ()
