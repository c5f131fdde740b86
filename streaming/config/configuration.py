"""The tables of the configuration. streaming/config/settings.py reads and checks them."""

from dataclasses import dataclass, replace

from sinks.bridge.settings import BridgeSettings
from sinks.kafka.security.client_settings import KafkaSettings
from sinks.mqtt.settings import AccessRule, DeviceLimits, GatewaySettings, ListenerSettings
from sinks.routing.settings import FastPathSettings, RoutingSettings
from state.dead_letters.exchanges import Exchange
from state.dead_letters.policy import Permission, Policy
from state.setting import Setting
from state.settings import SessionSettings
from streaming.config.keys import Partial
from streaming.settings import (
    ArchiveSettings,
    ConsoleSettings,
    EngineSettings,
    MetricsSettings,
    Profile,
    ThrottleSettings,
    TopicSettings,
)


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Everything that can be configured."""

    kafka: KafkaSettings = Setting().default(KafkaSettings())
    topics: TopicSettings = Setting().default(TopicSettings())
    engine: EngineSettings = Setting().default(EngineSettings())
    throttle: ThrottleSettings = Setting().default(ThrottleSettings())
    archive: ArchiveSettings = Setting().default(ArchiveSettings())
    gateway: GatewaySettings = Setting().default(GatewaySettings())
    limits: DeviceLimits = Setting(reloaded_by=("gateway",)).default(DeviceLimits())
    fast_path: FastPathSettings = Setting().default(FastPathSettings())
    routing: RoutingSettings = Setting().default(RoutingSettings())
    bridge: BridgeSettings = Setting().default(BridgeSettings())
    metrics: MetricsSettings = Setting().default(MetricsSettings())
    console: ConsoleSettings = Setting().default(ConsoleSettings())
    session: SessionSettings = Setting(reloaded_by=("engine", "gateway")).default(SessionSettings())
    profiles: tuple[Partial, ...] = Setting(element=Profile, reloaded_by=("engine", "gateway")).default(())
    exchanges: tuple[Exchange, ...] = Setting(reloaded_by=("engine",)).default(())
    policies: tuple[Policy, ...] = Setting(reloaded_by=("engine",)).default(())
    permissions: tuple[Permission, ...] = Setting(reloaded_by=("engine",)).default(())
    listeners: tuple[ListenerSettings, ...] = Setting().default(())
    rules: tuple[Partial, ...] = Setting(element=AccessRule, reloaded_by=("gateway",)).default(())

    @property
    def session_settings(self) -> SessionSettings:
        """The settings of clients of no profile."""
        return replace(
            self.session,
            fast_path=self.fast_path.enabled,
            routing=self.routing.enabled,
            routed_receipts=self.routing.receipts,
        )

    @property
    def session_profiles(self) -> tuple[tuple[str, SessionSettings], ...]:
        """(pattern of client ids, settings) in order; the first match wins, without one `session` holds."""
        return tuple((profile.plain().clients, profile.over(self.session_settings)) for profile in self.profiles)
