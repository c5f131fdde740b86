"""The configuration: one TOML file, overridden by the environment and by flags; checked as a whole before anything starts.

Layers, each winning over the one before:
1. the defaults of the settings classes;
2. the file: `--config FILE`, else conf/inflight.toml;
3. environment variables `INFLIGHT__SECTION__KEY`;
4. `--set section.key=value`; a bare key of [session] needs no section (`--set max_inflight=2`).

`load_settings` reports everything that is wrong in one ConfigurationError: where it stands, its key, what is allowed there.
"""

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, Final, Self

from pydantic import ValidationError, model_validator

from sinks.bridge.settings import BridgeSettings
from sinks.mqtt.settings import GatewaySettings
from sinks.routing.settings import RoutingSettings
from state.model import DestinationKind
from state.settings import RecordLimits
from streaming.config.configuration import Configuration
from streaming.config.contradictions import contradictions
from streaming.config.errors import ConfigurationError
from streaming.config.explain import Contradictions, explain, is_text, may_be_a_secret, resolve_key, unknown_key
from streaming.config.origins import Origins
from streaming.config.resources import conf_file
from streaming.config.secrets import is_harmless_option, names_a_secret
from streaming.config.section import KeyPath

ENVIRONMENT_PREFIX: Final = "INFLIGHT__"
_FREE_TABLES: Final = (("kafka", "options"), ("engine", "spark"))


class Settings(Configuration):
    """Everything that can be configured, checked. Tests may write `Settings(session={"max_inflight": 2})`."""

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
    def sessions_checkpoint(self) -> str:
        """The checkpoint of the query `sessions`: a directory of its own, as each query has."""
        return f"{self.checkpoint_location.rstrip('/')}/sessions"

    @property
    def tables_location(self) -> str:
        """`engine.tables_location`, or its default under the data directory."""
        return self.engine.tables_location or str(self.engine.data_dir.absolute() / "tables")

    @property
    def record_limits(self) -> RecordLimits:
        """Returns the limits of a message and of a record."""
        engine = self.engine
        return RecordLimits(
            max_payload_bytes=engine.max_payload_bytes,
            max_headers_bytes=engine.max_headers_bytes,
            max_routing_keys=engine.max_routing_keys,
            max_record_bytes=engine.max_record_bytes,
            max_client_id_bytes=self.gateway.max_client_id_bytes,
        )

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """Topics beside PREFIX.dead-letters that bindings send dead letters to; they have to exist before the engine starts."""
        found = (binding.destination for exchange in self.exchanges for binding in exchange.bindings)
        names = dict.fromkeys(destination.name for destination in found if destination.kind is DestinationKind.TOPIC)
        return tuple(name for name in names if name != self.topics.dead_letters)


def gateway_settings(settings: Settings) -> GatewaySettings:
    """Returns what `sinks.mqtt.process.serve` needs."""
    topics = settings.topics
    return replace(
        settings.gateway,
        **_kafka_side(settings),
        listeners=settings.listeners,
        rules=tuple(rule.plain() for rule in settings.rules),
        fast_path=replace(
            settings.fast_path,
            messages_topic=topics.messages,
            routes_topic=topics.routes,
            wake_ups_topic=topics.wake_ups,
        ),
        routing=routing_settings(settings),
        device_limits=settings.limits,
        limits=settings.record_limits,
        session=settings.session_settings,
        profiles=settings.session_profiles,
    )


def routing_settings(settings: Settings) -> RoutingSettings:
    """Returns what a matcher needs."""
    topics = settings.topics
    return replace(
        settings.routing,
        uplink_topic=topics.uplink,
        publications_topic=topics.publications,
        subscriptions_topic=topics.subscriptions,
        retained_topic=topics.retained,
        messages_topic=topics.messages,
        throttle_topic=topics.throttle,
    )


def bridge_settings(settings: Settings) -> BridgeSettings:
    """Returns what `sinks.bridge.bridge.serve` needs."""
    return replace(settings.bridge, **_kafka_side(settings))


def _kafka_side(settings: Settings) -> dict[str, Any]:
    kafka, topics = settings.kafka, settings.topics
    return {
        "bootstrap_servers": kafka.bootstrap_servers,
        "kafka_options": kafka.librdkafka_options(),
        "events_topic": topics.events,
        "commands_topic": topics.commands,
        "uplink_topic": topics.uplink,
        "leases_topic": topics.leases,
    }


def load_settings(
    config: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    flags: Mapping[KeyPath, str] | None = None,
    checks: Callable[[Settings], Iterable[tuple[KeyPath, str]]] = lambda settings: (),
    above: Path | None = None,
) -> Settings:
    """Reads and checks the settings in force.

    Args:
        config: The file; None = conf/inflight.toml.
        above: Another file, whose keys win over everything else: that of --policy.
        overrides: `key=value`; the last one for a key wins.
        flags: Other flags as the user wrote them, by the key that each one sets. A flag without a key stands for itself.
        checks: Yields what this machine does not allow: the key, what is wrong and what to do.

    Raises:
        ConfigurationError: Something is wrong; it carries all of it.
    """
    path = conf_file("inflight.toml") if config is None else config
    origins = Origins(path)
    layers = [_read_file(path, origins), _read_environment(origins), _read_overrides(overrides, origins)]
    if above is not None:
        layers.append(_read_file(above, origins, flag="--policy"))
    values: dict[str, Any] = reduce(_merged, layers)
    for key, flag in (flags or {}).items():
        origins.remember(key, flag)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        for key, message in explain(Settings, error):
            origins.blame(key, message)
    else:
        if not origins.problems:
            for key, message in checks(settings):
                origins.blame(key, message)
        if not origins.problems:
            return settings
    raise ConfigurationError(origins.problems)


def _read_file(path: Path, origins: Origins, flag: str = "--config") -> dict[str, Any]:
    where = str(path) if flag == "--config" else f"{flag} {path}"
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as error:
        origins.add(where, "", f"cannot be read: {error.strerror}; give another file with {flag}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        origins.add(where, "", f"is not a TOML file: {error}")
        return {}
    if not values:
        # A full disk or an unfinished save leaves such a file. Its defaults would let every device of this machine in.
        origins.add(where, "", f"has no key; write one, or leave {flag} out for the defaults")
    origins.remember_lines(path, text)
    return values


def _read_environment(origins: Origins) -> dict[str, Any]:
    values: dict[str, Any] = {}
    # A table comes before its keys, which win over it.
    for name in sorted((name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)), key=lambda name: name.count("__")):
        key, text = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."), os.environ[name]
        if path := resolve_key(Settings, key):
            values = _merged(values, _read_text(path, text, f"environment {name}={_shown(key, text)}", origins))
        else:
            origins.add(f"environment {name}", key, unknown_key(Settings, key))
    return values


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
        elif may_be_a_secret(Settings, path, text):
            origins.add(where, key, f"everybody on this machine sees the flags of a process: {_without_flag(path)}")
        else:
            values = _merged(values, _read_text(path, text, where, origins))
    return values


def _read_text(path: tuple[str, ...], text: str, where: str, origins: Origins) -> dict[str, Any]:
    """Returns the value of one key, in its tables. Lists and tables are JSON; so are the values of free names."""
    origins.remember(path, where)
    value: Any = text
    is_json = text.lstrip()[:1] in ("[", "{") and not is_text(Settings, path)
    if is_json or path[:-1] in _FREE_TABLES:
        try:
            value = json.loads(text)
        except ValueError as error:
            if is_json:
                origins.add(where, ".".join(path), f"is not JSON: {error}; a table or a list is written as JSON")
                return {}
    return reduce(lambda inner, part: {part: inner}, reversed(path[:-1]), {path[-1]: value})


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merges tables key by key; replaces everything else, lists too."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        result[key] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return result


def _shown(key: str, text: str) -> str:
    """Returns the value for a message; never a secret."""
    table = next((".".join(table) for table in _FREE_TABLES if f"{key}.".startswith(f"{'.'.join(table)}.")), None)
    is_free = table is not None and not is_harmless_option(key.removeprefix(f"{table}.").strip("\"'"))
    return "…" if is_free or names_a_secret(key) or names_a_secret(text) else text


def _without_flag(path: tuple[str, ...]) -> str:
    """Says how else a secret can be given."""
    in_file = "write it in a configuration file that only Inflight can read"
    if path[:-1] in _FREE_TABLES:
        return in_file
    return f"set the environment variable {ENVIRONMENT_PREFIX}{'__'.join(path).upper()}, or {in_file}"
