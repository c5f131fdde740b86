"""The configuration: one TOML file, overridden by the environment and by flags; checked as a whole before anything starts.

Layers, each winning over the one before:
1. defaults (of the sections);
2. the file: `--config FILE`, else conf/inflight.toml;
3. environment variables `INFLIGHT__SECTION__KEY`;
4. `--set section.key=value`; a bare key of [session] needs no section (`--set max_inflight=2`).

`load_settings` reports everything that is wrong in one ConfigurationError: where it stands, its key, what is allowed there.
"""

import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from pydantic import ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from sinks.bridge.settings import BridgeSettings
from sinks.mqtt.settings import GatewaySettings
from state.records.settings import RecordLimits
from state.settings import SessionSettings
from streaming.config.configuration import Configuration
from streaming.config.contradictions import contradictions, merged, session_of
from streaming.config.errors import ConfigurationError
from streaming.config.explain import Contradictions, explain, holds_a_secret, resolve_key, unknown_key
from streaming.config.origins import Origins
from streaming.config.policy_sections import dead_letter_topics
from streaming.config.resources import conf_file
from streaming.config.section import names_a_secret
from streaming.config.sections import SessionSection

ENVIRONMENT_PREFIX: Final = "INFLIGHT__"
_FREE_TABLES: Final = (("kafka", "options"), ("engine", "spark"))


class Settings(Configuration, BaseSettings):
    """Everything that can be configured. Made by `load_settings`; tests may write `Settings(session={"max_inflight": 2})`."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", env_prefix_target="all"
    )

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
        if problems := list(contradictions(self)):
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
    def session_settings(self) -> SessionSettings:
        """Those that hold for clients of no profile."""
        return self._complete(self.session)

    @property
    def session_profiles(self) -> tuple[tuple[str, SessionSettings], ...]:
        """(pattern of client ids, settings) in order; the first match wins, without one `session` holds."""
        return tuple((profile.clients, self._complete(session_of(profile, self.session))) for profile in self.profiles)

    def _complete(self, session: SessionSection) -> SessionSettings:
        return replace(session.to_session_settings(), fast_path=self.fast_path.enabled)

    @property
    def record_limits(self) -> RecordLimits:
        """What a message may have, and how large a record is."""
        engine = self.engine
        return RecordLimits(
            max_payload_bytes=engine.max_payload_bytes,
            max_headers_bytes=engine.max_headers_bytes,
            max_record_bytes=engine.max_record_bytes,
            max_client_id_bytes=self.gateway.max_client_id_bytes,
        )

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """Topics beside PREFIX.dead-letters that bindings send dead letters to."""
        return tuple(name for name in dead_letter_topics(self.exchanges) if name != self.topics.dead_letters)


def gateway_settings(settings: Settings) -> GatewaySettings:
    """What `sinks.mqtt.process.serve` takes."""
    return settings.gateway.to_gateway_settings(
        settings.kafka,
        settings.topics,
        settings.listeners,
        settings.rules,
        fast_path=settings.fast_path.to_fast_path_settings(settings.topics),
        device_limits=settings.limits.to_device_limits(),
        limits=settings.record_limits,
        session=settings.session_settings,
        profiles=settings.session_profiles,
    )


def bridge_settings(settings: Settings) -> BridgeSettings:
    """What `sinks.bridge.bridge.serve` takes."""
    return settings.bridge.to_bridge_settings(settings.kafka, settings.topics)


def load_settings(config: Path | None = None, overrides: Sequence[str] = ()) -> Settings:
    """The settings in force, checked. config: None = conf/inflight.toml. overrides: `key=value`, the last one wins.

    Raises ConfigurationError with all that is wrong.
    """
    path = conf_file("inflight.toml") if config is None else config
    origins = Origins(path)
    values = merged(merged(_read_file(path, origins), _read_environment(origins)), _read_overrides(overrides, origins))
    try:
        settings = Settings(**values)
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
        path = resolve_key(Settings, key)
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
        path = resolve_key(Settings, key) or resolve_key(Settings, f"session.{key}")
        if not equals:
            origins.add(where, key, "write --set section.key=value")
        elif path is None:
            origins.add(where, key, unknown_key(Settings, key))
        elif holds_a_secret(Settings, path, text):
            origins.add(where, key, f"everybody on this machine sees the flags of a process: {_without_flag(path)}")
        else:
            origins.remember(path, where)
            try:
                value = _decoded(text, in_free_table=path[:-1] in _FREE_TABLES)
            except ValueError as error:
                origins.add(where, key, f"is not JSON: {error}; a table or a list is written as JSON")
                continue
            for part in reversed(path):
                value = {part: value}
            values = merged(values, value)
    return values


def _shown(key: str, text: str) -> str:
    """The value for a message; never a secret."""
    return "…" if names_a_secret(key) or names_a_secret(text) else text


def _without_flag(path: tuple[str, ...]) -> str:
    """How else a secret is told."""
    in_file = "write it in a configuration file that only Inflight can read"
    if path[:-1] in _FREE_TABLES:
        return in_file
    return f"set the environment variable {ENVIRONMENT_PREFIX}{'__'.join(path).upper()}, or {in_file}"


def _decoded(text: str, *, in_free_table: bool) -> Any:
    """Lists and tables are JSON; so are numbers and true/false where no type of ours says what a name holds."""
    is_json = text[:1] in ("[", "{")
    if is_json or in_free_table:
        try:
            return json.loads(text)
        except ValueError:
            if is_json:
                raise
    return text
