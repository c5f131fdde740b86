"""The tables of the configuration. streaming/config/settings.py reads and checks them."""

from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict

from sinks.bridge.settings import BridgeSettings
from sinks.kafka.security.client_settings import KafkaSettings
from sinks.mqtt.settings import AccessRule, DeviceLimits, GatewaySettings, ListenerSettings
from sinks.routing.settings import FastPathSettings, RoutingSettings
from state.dead_letters.exchanges import Exchange
from state.dead_letters.policy import Permission, Policy
from state.setting import Setting
from state.settings import SessionSettings
from streaming.config.section import Table, section_of
from streaming.settings import (
    ArchiveSettings,
    ConsoleSettings,
    EngineSettings,
    MetricsSettings,
    Profile,
    ThrottleSettings,
    TopicSettings,
)


class ProfileSection(section_of(Profile)):  # type: ignore[misc]
    """A profile that knows which keys are written."""


class RuleSection(section_of(AccessRule)):  # type: ignore[misc]
    """A rule that knows which keys are written."""


class Configuration(BaseModel):
    """Everything that can be configured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kafka: Annotated[KafkaSettings, Table()] = KafkaSettings()
    topics: Annotated[TopicSettings, Table()] = TopicSettings()
    engine: Annotated[EngineSettings, Table()] = EngineSettings()
    throttle: Annotated[ThrottleSettings, Table()] = ThrottleSettings()
    archive: Annotated[ArchiveSettings, Table()] = ArchiveSettings()
    gateway: Annotated[GatewaySettings, Table()] = GatewaySettings()
    limits: Annotated[DeviceLimits, Table(reloaded_by=("gateway",))] = DeviceLimits()
    fast_path: Annotated[FastPathSettings, Table()] = FastPathSettings()
    routing: Annotated[RoutingSettings, Table()] = RoutingSettings()
    bridge: Annotated[BridgeSettings, Table()] = BridgeSettings()
    metrics: Annotated[MetricsSettings, Table()] = MetricsSettings()
    console: Annotated[ConsoleSettings, Table()] = ConsoleSettings()
    session: Annotated[SessionSettings, Table(reloaded_by=("engine", "gateway"))] = SessionSettings()
    profiles: Annotated[tuple[ProfileSection, ...], Setting(reloaded_by=("engine", "gateway"))] = ()
    exchanges: Annotated[tuple[Exchange, ...], Table(reloaded_by=("engine",))] = ()
    policies: Annotated[tuple[Policy, ...], Table(reloaded_by=("engine",))] = ()
    permissions: Annotated[tuple[Permission, ...], Table(reloaded_by=("engine",))] = ()
    listeners: Annotated[tuple[ListenerSettings, ...], Table()] = ()
    rules: Annotated[tuple[RuleSection, ...], Setting(reloaded_by=("gateway",))] = ()

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
        return tuple((profile.clients, profile.over(self.session_settings)) for profile in self.profiles)
