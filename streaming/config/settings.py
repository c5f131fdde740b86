"""The configuration: one TOML file, overridden by the environment and by flags; checked as a whole before anything starts.

Layers, each winning over the one before:
1. defaults (streaming/config/sections.py);
2. the file: `--config FILE`, else conf/inflight.toml;
3. environment variables `INFLIGHT__SECTION__KEY`;
4. `--set section.key=value`; a bare key of [session] needs no section (`--set max_inflight=2`).

`load_settings` reports everything that is wrong in one ConfigurationError: where it stands, its key, what is allowed there.
"""

import fnmatch
import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from state.settings import SessionSettings
from streaming.config.bridge_section import BridgeSection, bridge_problems
from streaming.config.errors import ConfigurationError
from streaming.config.explain import Contradictions, KeyPath, explain, resolve_key, unknown_key
from streaming.config.metrics_section import MetricsSection
from streaming.config.origins import Origins
from streaming.config.policy_sections import (
    ExchangeSection,
    PermissionSection,
    PolicySection,
    dead_letter_problems,
    dead_letter_topics,
)
from streaming.config.resources import conf_file
from streaming.config.sections import (
    ArchiveSection,
    EngineSection,
    GatewaySection,
    KafkaSection,
    ProfileSection,
    SessionSection,
    ThrottleSection,
    TopicsSection,
)
from streaming.config.units import format_duration, format_size

if TYPE_CHECKING:
    from sinks.bridge.settings import BridgeSettings
    from sinks.mqtt.settings import GatewaySettings

ENVIRONMENT_PREFIX: Final = "INFLIGHT__"
_MQTT_OVERHEAD_BYTES: Final = 64 << 10
_FREE_TABLES: Final = (("kafka", "options"), ("engine", "spark"))


class Settings(BaseSettings):
    """Everything that can be configured. Made by `load_settings`; tests may write `Settings(session={"max_inflight": 2})`."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", env_prefix_target="all"
    )

    kafka: KafkaSection = KafkaSection()
    topics: TopicsSection = TopicsSection()
    engine: EngineSection = EngineSection()
    throttle: ThrottleSection = ThrottleSection()
    archive: ArchiveSection = ArchiveSection()
    gateway: GatewaySection = GatewaySection()
    bridge: BridgeSection = BridgeSection()
    metrics: MetricsSection = MetricsSection()
    session: SessionSection = SessionSection()
    profile_sections: tuple[ProfileSection, ...] = Field((), alias="profiles")
    exchanges: tuple[ExchangeSection, ...] = ()
    policies: tuple[PolicySection, ...] = ()
    permissions: tuple[PermissionSection, ...] = ()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # load_settings merges the layers itself, because it has to know afterwards which of them a wrong value came from.
        return (init_settings,)

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        problems = list(_contradictions(self))
        if problems:
            raise Contradictions(problems)
        return self

    @property
    def checkpoint_location(self) -> str:
        """`engine.checkpoint_location`, or its default under the data directory."""
        return self.engine.checkpoint_location or str(self.engine.data_dir.absolute() / "checkpoint")

    @property
    def tables_location(self) -> str:
        """`engine.tables_location`, or its default under the data directory."""
        return self.engine.tables_location or str(self.engine.data_dir.absolute() / "tables")

    @property
    def profiles(self) -> tuple[tuple[str, SessionSettings], ...]:
        """(pattern of client ids, settings) in order; the first match wins, without one `session` holds."""
        return tuple((profile.clients, section.to_session_settings()) for profile, section in _with_profiles(self))

    def session_settings_for(self, client_id: str) -> SessionSettings:
        """The session settings of one client, without policy. For one question; the engine has a cache over `profiles`."""
        for pattern, settings in self.profiles:
            if fnmatch.fnmatchcase(client_id, pattern):
                return settings
        return self.session.to_session_settings()

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """Topics beside PREFIX.dead-letters that bindings send dead letters to."""
        return tuple(name for name in dead_letter_topics(self.exchanges) if name != self.topics.dead_letters)


def gateway_settings(settings: Settings) -> "GatewaySettings":
    """What `sinks.mqtt.process.serve` takes."""
    return settings.gateway.to_gateway_settings(settings.kafka, settings.topics)


def bridge_settings(settings: Settings) -> "BridgeSettings":
    """What `sinks.bridge.bridge.serve` takes."""
    return settings.bridge.to_bridge_settings(settings.kafka, settings.topics)


def load_settings(config: Path | None = None, overrides: Sequence[str] = ()) -> Settings:
    """The settings in force, checked. config: None = conf/inflight.toml. overrides: `key=value`, the last one wins.

    Raises ConfigurationError with all that is wrong.
    """
    path = conf_file("inflight.toml") if config is None else config
    origins = Origins(path)
    merged = _merged(_merged(_read_file(path, origins), _read_environment(origins)), _read_overrides(overrides, origins))
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        for key, message in explain(Settings, error):
            origins.blame(key, message)
    else:
        if not origins.problems:
            return settings
    raise ConfigurationError(origins.problems)


def _read_file(path: Path, origins: Origins) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as error:
        origins.add(str(path), "", f"cannot be read: {error.strerror}; give another file with --config")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        origins.add(str(path), "", f"is not a TOML file: {error}")
        return {}
    origins.remember_lines(text)
    return values


def _read_environment(origins: Origins) -> dict[str, Any]:
    for name, value in os.environ.items():
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        path = ("profiles",) if key == "profiles" else resolve_key(Settings, key)
        if path is None:
            origins.add(f"environment {name}", key, unknown_key(Settings, key))
        else:
            origins.remember(path, f"environment {name}={_shown(key, value)}")
    try:
        return EnvSettingsSource(Settings)()
    except SettingsError as error:
        origins.add("environment", "", f"{error}: a table or a list is written as JSON")
        return {}


def _read_overrides(overrides: Sequence[str], origins: Origins) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        where = f"--set {key}{equals}{_shown(key, text)}"
        path = ("profiles",) if key == "profiles" else resolve_key(Settings, key) or resolve_key(Settings, f"session.{key}")
        if not equals:
            origins.add(where, key, "write --set section.key=value")
        elif path is None:
            origins.add(where, key, unknown_key(Settings, key))
        else:
            origins.remember(path, where)
            try:
                value = _decoded(text, in_free_table=path[:-1] in _FREE_TABLES)
            except ValueError as error:
                origins.add(where, key, f"is not JSON: {error}; a table or a list is written as JSON")
                continue
            for part in reversed(path):
                value = {part: value}
            values = _merged(values, value)
    return values


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; everything else, lists too, is replaced."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        result[key] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return result


def _shown(key: str, text: str) -> str:
    """The value for a message; never a secret."""
    return "…" if "password" in key or "credentials" in key else text


def _decoded(text: str, *, in_free_table: bool) -> Any:
    """Lists and tables are JSON; so are numbers and true/false where no type of ours says what a name holds."""
    if text[:1] in ("[", "{"):
        return json.loads(text)
    if in_free_table:
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _with_profiles(settings: Settings) -> Iterator[tuple[ProfileSection, SessionSection]]:
    base = settings.session.model_dump()
    for profile in settings.profile_sections:
        yield profile, SessionSection(**_merged(base, profile.model_dump(exclude_unset=True, exclude={"clients"})))


def _contradictions(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """What the keys are not allowed to be together, and what to change."""
    engine, gateway, kafka = settings.engine, settings.gateway, settings.kafka
    sessions: list[tuple[KeyPath, SessionSection]] = [(("session",), settings.session)]
    sessions += [(("profiles", index), section) for index, (_, section) in enumerate(_with_profiles(settings))]
    for path, session in sessions:
        if session.backoff.max < session.backoff.initial:
            yield (
                (*path, "backoff", "max"),
                f"is {format_duration(session.backoff.max)}, less than backoff.initial = "
                f"{format_duration(session.backoff.initial)}: raise it",
            )
        if 0 < session.high_watermark <= session.low_watermark:
            yield (
                (*path, "low_watermark"),
                f"is {session.low_watermark}, not below high_watermark = {session.high_watermark}: lower it, or set "
                "high_watermark = 0 to never ask backends to wait",
            )
        if 0 < session.max_mqueue_bytes < engine.max_payload_bytes:
            yield (
                (*path, "max_mqueue_bytes"),
                f"is {format_size(session.max_mqueue_bytes)}, so a message of engine.max_payload_bytes = "
                f"{format_size(engine.max_payload_bytes)} would never fit in the queue: raise it, or lower max_payload_bytes",
            )
    needed = engine.max_payload_bytes + 2 * engine.max_headers_bytes
    if needed > engine.max_record_bytes:
        yield (
            ("engine", "max_record_bytes"),
            f"is {engine.max_record_bytes}, but a message of the largest size needs {needed} (max_payload_bytes + 2 × "
            "max_headers_bytes): raise it (and max.message.bytes of the topics), or lower max_payload_bytes",
        )
    if gateway.max_packet_size_bytes + _MQTT_OVERHEAD_BYTES > engine.max_record_bytes:
        yield (
            ("gateway", "max_packet_size_bytes"),
            f"is {format_size(gateway.max_packet_size_bytes)}, and with {format_size(_MQTT_OVERHEAD_BYTES)} around it such a "
            f"packet does not fit in a record of engine.max_record_bytes = {engine.max_record_bytes}: lower it, or raise that",
        )
    throttle = settings.throttle
    for on, high, low in (
        (throttle.lag_high, "lag_high", "lag_low"),
        (throttle.state_high, "state_high", "state_low"),
        (throttle.free_disk_low, "free_disk_high", "free_disk_low"),
    ):
        if on and getattr(throttle, high) <= getattr(throttle, low):
            yield ("throttle", low), f"is not below {high}: lower it, or raise {high}"
    yield from bridge_problems(settings.bridge, settings.kafka, settings.topics)
    if kafka.security_protocol.startswith("SASL") and not (kafka.sasl_username and kafka.sasl_password.get_secret_value()):
        yield ("kafka", "sasl_username"), f"security_protocol = {kafka.security_protocol} needs sasl_username and sasl_password"
    yield from dead_letter_problems(
        settings.exchanges,
        settings.policies,
        settings.permissions,
        topics=settings.topics,
        max_client_id_bytes=gateway.max_client_id_bytes,
    )
