"""Defines options that several commands share, and loads the configuration that they name."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from streaming.config.section import KeyPath
    from streaming.config.settings import Settings
    from streaming.reload.configuration_watch import ConfigurationWatch

Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration; default: conf/inflight.toml of the installation.")
]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. session.max_inflight=64. Repeatable."),
]
DataDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Directory of all data; default: engine.data_dir (var/inflight)."),
]
JsonLogs: TypeAlias = Annotated[bool, typer.Option("--json-logs", help="Log JSON lines.")]


def load(
    config: Path | None,
    overrides: list[str] | None,
    data_dir: Path | None = None,
    *,
    flags: "Mapping[KeyPath, str] | None" = None,
    checks: "Callable[[Settings], Iterable[tuple[KeyPath, str]]]" = lambda settings: (),
    above: Path | None = None,
) -> "Settings":
    """Returns the settings in force for a command.

    Args:
        flags, above: As `load_settings` has them; --data-dir is one of the flags.
        checks: Yields what this machine does not allow (inflight/local/start_checks.py).

    Raises:
        ConfigurationError: The configuration is wrong, or a check has found something.
    """
    from streaming.config.settings import load_settings

    if data_dir is None:
        return load_settings(config, overrides or (), flags=flags, checks=checks, above=above)
    written = {("engine", "data_dir"): f"--data-dir {data_dir}", **(flags or {})}
    overrides = [*(overrides or ()), f"engine.data_dir={data_dir}"]
    return load_settings(config, overrides, flags=written, checks=checks, above=above)


def watch_configuration(config: Path | None, overrides: list[str] | None, data_dir: Path | None = None) -> "ConfigurationWatch":
    """Returns a watch that loads the settings now and again whenever the file has changed."""
    from streaming.config.resources import conf_file
    from streaming.reload.configuration_watch import ConfigurationWatch

    path = conf_file("inflight.toml") if config is None else config
    return ConfigurationWatch(path, lambda: load(config, overrides, data_dir))


def load_for_running_system(
    config: Path | None,
    overrides: list[str] | None,
    data_dir: Path | None = None,
    *,
    checks: "Callable[[Settings], Iterable[tuple[KeyPath, str]]]" = lambda settings: (),
    asks_kafka: bool = True,
    above: Path | None = None,
) -> "Settings":
    """Returns the settings for a command that asks a running `inflight up`, if there is one on the data directory.

    They are those of that process: its Kafka, its --config unless the command has its own, and its --set options, which those of
    the command override.
    """
    from inflight.local.endpoints import Endpoints

    settings = load(config, overrides, data_dir, checks=checks, above=above)
    directory = settings.engine.data_dir
    running = Endpoints.read(directory)
    if running.kafka:
        file = Path(running.config) if config is None and running.config else config
        theirs = [*running.overrides, f"kafka.bootstrap_servers={running.kafka}", "kafka.security_protocol=PLAINTEXT"]
        return load(file, [*theirs, *(overrides or ())], directory, checks=checks, above=above)
    if not asks_kafka:
        return settings
    if config is None and not directory.exists() and settings.kafka.bootstrap_servers == type(settings.kafka)().bootstrap_servers:
        from streaming.terminal import say

        say(
            f"note: there is no {directory} in {Path.cwd()}, so nothing is known of an `inflight up`, and Kafka is looked for at "
            f"{settings.kafka.bootstrap_servers}. Run this where `inflight up` runs, or give --data-dir, --config or "
            "--set kafka.bootstrap_servers.",
            err=True,
        )
    return settings
