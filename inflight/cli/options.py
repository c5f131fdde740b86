"""Options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from streaming.config.settings import Settings
    from streaming.reload.configuration_watch import ConfigurationWatch

Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration; default: conf/inflight.toml.")
]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Another value for one key, e.g. session.max_inflight=64. Repeatable."),
]
DataDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where everything is kept; default: engine.data_dir (var/inflight)."),
]
JsonLogs: TypeAlias = Annotated[bool, typer.Option("--json-logs", help="Log JSON lines.")]


def load(config: Path | None, overrides: list[str] | None, data_dir: Path | None = None) -> "Settings":
    """The settings in force for a command. Raises ConfigurationError."""
    from streaming.config.settings import load_settings

    extra = [] if data_dir is None else [f"engine.data_dir={data_dir}"]
    return load_settings(config, [*(overrides or ()), *extra])


def watched(config: Path | None, overrides: list[str] | None, data_dir: Path | None = None) -> "ConfigurationWatch":
    """`load`, now and whenever the file has changed."""
    from streaming.config.resources import conf_file
    from streaming.reload.configuration_watch import ConfigurationWatch

    path = conf_file("inflight.toml") if config is None else config
    return ConfigurationWatch(path, lambda: load(config, overrides, data_dir))


def load_beside(config: Path | None, overrides: list[str] | None, data_dir: Path | None = None) -> "Settings":
    """The same for a command that talks to the Kafka of `inflight up` when one runs on the data directory; `--set` still wins."""
    from inflight.local.endpoints import Endpoints

    settings = load(config, overrides, data_dir)
    running = Endpoints.read(settings.engine.data_dir).kafka
    return load(config, [f"kafka.bootstrap_servers={running}", *(overrides or ())], data_dir) if running else settings
