"""Names the processes of a testbed and configures them."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from state.settings import SessionSettings
from tests.support.bridged_device import TOPIC_TEMPLATE
from trials.faults.plan.busy import BUSY
from trials.faults.plan.characters import EXPIRY_S
from trials.faults.plan.faults import BRIDGES, GATEWAYS, LEASE_S, Victim

PROFILES = "".join(
    f'[[profiles]]\nclients = "{keeping}-*"\nsession_expiry_interval = "{EXPIRY_S}s"\n' for keeping in ("short", "clean")
)
_DEFAULTS = SessionSettings()
PROFILES += (
    f'[[profiles]]\nclients = "{BUSY}-*"\nmax_mqueue_len = {_DEFAULTS.max_mqueue_len}\n'
    f"max_mqueue_bytes = {_DEFAULTS.max_mqueue_bytes}\n"
)
"""Busy clients have the limits of the product, so that a message that is dropped for them is a loss."""
_EVERYWHERE = (
    f"gateway.lease_ms={LEASE_S}s",
    # The account knows no grace: every connection that does not end with a goodbye has its will published.
    "gateway.reconnect_grace_ms=0",
    "gateway.group_session_timeout_ms=6s",
    f"bridge.lease_ms={LEASE_S}s",
    "bridge.group_session_timeout_ms=6s",
    f"bridge.topic_template={TOPIC_TEMPLATE}",
    "bridge.keep_alive_ms=2s",
    "bridge.connect_timeout_ms=2s",
    "bridge.backoff.max=3s",
    "retry_interval=2s",
    # A queue that drops nothing, and a message that is tried for ever: every other outcome is the end of a session. PROFILES has
    # the queue of busy clients.
    "max_mqueue_len=0",
    "max_mqueue_bytes=0",
    "delivery_limit=-1",
    "crash_limit=-1",
    # The disks are small, and how full they are before anything fills them does not matter.
    "throttle.free_disk_low=0",
)
_ON_A_CLUSTER = (
    "engine.state_partitions=2",
    'engine.spark."spark.driver.host"=127.0.0.1',
    'engine.spark."spark.executor.memory"=600m',
)


class Shape(StrEnum):
    """Shapes of a testbed.

    LOCAL: the engine's tasks run in its own JVM. CLUSTER: in executors on a Spark standalone cluster with two workers. BRIDGE:
    as LOCAL, with two bridges behind a Mosquitto instead of gateways. ROUTING: as LOCAL, with routing, and a matcher beside those
    of the gateways; devices publish to each other. STANDBY: as LOCAL, with a second engine that waits.
    """

    LOCAL = "local"
    CLUSTER = "cluster"
    BRIDGE = "bridge"
    ROUTING = "routing"
    STANDBY = "standby"

    @property
    def ends(self) -> tuple[Victim, ...]:
        """The processes that speak to devices, or to their broker."""
        return BRIDGES if self is Shape.BRIDGE else GATEWAYS

    @property
    def has_busy_clients(self) -> bool:
        """Says that some clients get hundreds of messages a second."""
        return self not in (Shape.BRIDGE, Shape.ROUTING)

    @property
    def on_kafka(self) -> tuple[Victim, ...]:
        """The processes that have a way of their own to Kafka."""
        more = {Shape.ROUTING: (Victim.MATCHER,), Shape.STANDBY: (Victim.STANDBY,)}.get(self, ())
        return (Victim.ENGINE, *self.ends, *more)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings of all processes."""
        return (*_EVERYWHERE, "routing.enabled=true") if self is Shape.ROUTING else _EVERYWHERE

    @property
    def victims(self) -> frozenset[Victim]:
        more = {Shape.CLUSTER: (Victim.EXECUTOR,), Shape.BRIDGE: (Victim.BROKER,)}.get(self, ())
        return frozenset((Victim.KAFKA, *self.on_kafka, *more))


def engine_commands(shape: Shape, data_dir: Path, master: str) -> dict[Victim, tuple[str, ...]]:
    """Returns command and overrides of each engine. master: of a cluster; empty = there is none."""
    alone = ("engine", f"engine.data_dir={data_dir}", *((f"engine.master={master}", *_ON_A_CLUSTER) if master else ()))
    return {Victim.ENGINE: alone} | ({Victim.STANDBY: alone} if shape is Shape.STANDBY else {})


def end_commands(shape: Shape, ports: Mapping[Victim, int]) -> dict[Victim, tuple[str, ...]]:
    """Returns command and overrides of each gateway, bridge and matcher.

    ports: where a gateway listens, or a bridge finds its broker.
    """
    if shape is not Shape.BRIDGE:
        alone: dict[Victim, tuple[str, ...]] = {Victim.MATCHER: ("matcher",)} if shape is Shape.ROUTING else {}
        return {gateway: ("gateway", f"gateway.port={port}") for gateway, port in ports.items()} | alone
    names = {bridge: bridge.replace(" ", "-") for bridge in ports}
    return {
        bridge: ("bridge", f"bridge.port={port}", f"bridge.name={names[bridge]}", f"bridge.group_instance_id={names[bridge]}")
        for bridge, port in ports.items()
    }
