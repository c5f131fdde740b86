"""Implements `size`: what a fleet needs, by the formula of inflight/sizing.py."""

import math
import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from inflight.cli.history import Json
from inflight.cli.options import Config, Overrides, load
from inflight.sizing import BROKERS, Deployment, Fleet
from inflight.sizing import size as sized

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)/([smhd])")
_RATE_HELP: Final = "1/m is one a minute; also /s, /h and /d"


def size(
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="Devices that are connected at the same time.")],
    rate: Annotated[str, typer.Option(metavar="N/TIME", help=f"Messages to each device: {_RATE_HELP}.")],
    publish: Annotated[str, typer.Option(metavar="N/TIME", help="Publications of each device, likewise.")] = "0/s",
    payload_bytes: Annotated[int, typer.Option(min=0, metavar="BYTES", help="The mean payload.")] = 200,
    keep_alive: Annotated[str, typer.Option(metavar="DURATION", help="How often a silent device sends PINGREQ.")] = "1m",
    json: Json = False,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Compute cores, partitions, gateways, memory and disk for a fleet; docs/operate/sizing.md has the formula."""
    import msgspec

    from streaming.config.units import parse_duration_ms
    from streaming.terminal import write_json, write_table

    try:
        keep_alive_s = parse_duration_ms(keep_alive) / 1_000
    except ValueError as error:
        raise typer.BadParameter(f"--keep-alive {keep_alive}: {error}") from None
    if keep_alive_s <= 0:
        raise typer.BadParameter(f"--keep-alive {keep_alive}: must be longer than nothing")
    fleet = Fleet(
        devices=devices,
        messages_per_s=per_second("--rate", rate),
        publications_per_s=per_second("--publish", publish),
        payload_bytes=payload_bytes,
        keep_alive_s=keep_alive_s,
    )
    rows = sized(fleet, deployment_of(load(config, overrides)))
    if json:
        write_json([msgspec.to_builtins(row) for row in rows])
    else:
        write_table(("for", "takes", "because"), [(row.what, row.value, row.reason) for row in rows])


def per_second(flag: str, text: str) -> float:
    """Returns the rate of `1/m` or `0.5/s` per second. Raises typer.BadParameter."""
    if (found := _RATE.fullmatch(text.strip())) is None:
        raise typer.BadParameter(f"{flag} {text}: {_RATE_HELP}")
    return float(found[1]) / _SECONDS[found[2]]


def deployment_of(settings: "Settings") -> Deployment:
    """Returns what the formula takes from the configuration."""
    from state.setting import NEVER_MS

    kept = settings.topics.retention
    retention_ms = {
        "messages": kept.messages,
        "events": kept.events,
        "uplink": kept.uplink,
        "receipts": kept.receipts,
        "ledger": kept.ledger,
    }
    replicas = settings.topics.replication_factor
    return Deployment(
        replicas=replicas if replicas > 0 else BROKERS,
        receipts=settings.engine.receipts,
        ledger=settings.engine.ledger,
        retention_s={topic: math.inf if ms >= NEVER_MS else ms / 1_000 for topic, ms in retention_ms.items()},
        max_connections=settings.limits.max_connections,
        max_connect_rate=settings.limits.max_connect_rate,
        max_queue_len=settings.session.max_mqueue_len,
        max_queue_bytes=settings.session.max_mqueue_bytes,
    )
