"""Checks what this machine allows before a process is started: directories, ports, files, and what one broker cannot do.

Each function yields the key (or the flag) at fault with what is wrong and what to do. `load_settings(checks=…)` adds where the
value was written, and reports all of them at once.
"""

import errno
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from inflight.local.data_directory import data_directory_faults, directory_fault, is_in_use
from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.password_file import read_password_file
from sinks.mqtt.access.token_keys import read_token_keys
from sinks.mqtt.listeners.tls import tls_context
from sinks.mqtt.settings import NO_LISTENER
from streaming.config.section import KeyPath
from streaming.config.settings import Settings

Faults = Iterator[tuple[KeyPath, str]]
"""(key path, what is wrong and what to do)."""

KAFKA_PORT: Final = ("--kafka-port",)
_FREE_WITHIN_S: Final = 3.0
"""Children of a process that was killed need a moment to notice."""
_FREE_POLL_S: Final = 0.05
_LOOPBACK: Final = "127.0.0.1"


def up_faults(settings: Settings, *, kafka_port: int) -> Faults:
    """Checks everything for `inflight up`.

    Args:
        kafka_port: 0 = any free one.
    """
    yield from engine_directory_faults(settings)
    yield from one_broker_faults(settings)
    if settings.gateway.port == NO_LISTENER:
        yield ("gateway", "port"), "is -1, and `inflight up` has a plain listener, on loopback: give it a port, or --mqtt-port"
    yield from gateway_file_faults(settings)
    if is_in_use(settings.engine.data_dir):
        return  # the ports are those of the `inflight up` that runs there, which DataDirectoryInUse names
    ports = [*_gateway_ports(settings), *_metrics_ports(settings, "engine_port", "gateway_port")]
    console = settings.console
    yield from port_faults([*ports, (("console", "port"), console.host, console.port), (KAFKA_PORT, _LOOPBACK, kafka_port)])


def engine_faults(settings: Settings, *, is_standby: bool = False) -> Faults:
    """Checks everything for `inflight engine`.

    Args:
        is_standby: It moves from a metrics port that is taken.
    """
    yield from engine_directory_faults(settings)
    if not is_standby:
        yield from port_faults(_metrics_ports(settings, "engine_port"))


def gateway_faults(settings: Settings, *, is_one_of_several: bool) -> Faults:
    """Checks everything for `inflight gateway`.

    Args:
        is_one_of_several: True if other processes of this gateway hold the same ports already.
    """
    yield from gateway_file_faults(settings)
    if not is_one_of_several:
        yield from port_faults([*_gateway_ports(settings), *_metrics_ports(settings, "gateway_port")])


def bridge_faults(settings: Settings) -> Faults:
    """Checks everything for `inflight bridge`."""
    bridge = settings.bridge
    if bridge.tls:
        names = "tls_cafile", "tls_certfile", "tls_keyfile"
        for name in names:
            if (path := getattr(bridge, name)) and (fault := _unreadable(Path(path))):
                yield ("bridge", name), fault
    yield from port_faults(_metrics_ports(settings, "bridge_port"))


def matcher_faults(settings: Settings) -> Faults:
    """Checks everything for `inflight matcher`."""
    if not settings.routing.enabled:
        yield ("routing", "enabled"), "is false, and then nothing is routed: set it to true for all processes"
    yield from port_faults(_metrics_ports(settings, "matcher_port"))


def engine_directory_faults(settings: Settings) -> Faults:
    """Checks the data directory, and the local directories of checkpoint and tables."""
    engine = settings.engine
    yield from ((("engine", "data_dir"), fault) for fault in data_directory_faults(engine.data_dir))
    places = {"checkpoint_location": settings.checkpoint_location}
    if settings.archive.enabled:
        places["tables_location"] = settings.tables_location
    for name, location in places.items():
        url = urlparse(location)
        is_below = not getattr(engine, name)
        if url.scheme not in ("", "file") or (is_below and not Path(location).exists()):
            continue
        if fault := directory_fault(Path(url.path if url.scheme else location)):
            yield ("engine", "data_dir" if is_below else name), fault


def one_broker_faults(settings: Settings) -> Faults:
    """Checks what the only broker of `inflight up` cannot do."""
    topics = settings.topics
    for name in ("replication_factor", "min_insync_replicas"):
        if (value := getattr(topics, name)) > 1:
            yield (
                ("topics", name),
                f"is {value}, and `inflight up` runs one broker: set 1 or -1, or use a Kafka with {value} brokers",
            )


def gateway_file_faults(settings: Settings) -> Faults:
    """Checks the certificates of all listeners, and the files of users and keys."""
    login = settings.gateway.login
    readers: dict[str, Callable[[Path], object]] = {"password_file": read_password_file, "token_keyfile": read_token_keys}
    for name, read in readers.items():
        if path := getattr(login, name):
            try:
                read(Path(path))
            except UnusableFile as error:
                yield ("gateway", "login", name), str(error)
    if (path := login.token_jwks_cafile) and (fault := _unreadable(Path(path))):
        yield ("gateway", "login", "token_jwks_cafile"), fault
    for index, listener in enumerate(settings.listeners):
        faults = [
            (("listeners", index, name), fault)
            for name in ("tls_certfile", "tls_keyfile", "client_cafile", "client_crlfile")
            if (path := getattr(listener, name)) and (fault := _unreadable(Path(path)))
        ]
        faults += [
            (("listeners", index, "sni_certfiles"), fault)
            for path in listener.sni_certfiles
            if (fault := _unreadable(Path(path)))
        ]
        yield from faults
        if not faults:
            try:
                tls_context(listener)
            except UnusableFile as error:
                yield ("listeners", index, "tls_certfile"), str(error)


def port_faults(wanted: list[tuple[KeyPath, str, int]]) -> Faults:
    """Checks that each port is free, and that no two of ours are the same.

    Args:
        wanted: Key, host and port of each. 0 = any free port, which needs an address of this machine too; -1 = none.
    """
    deadline_s = time.monotonic() + _FREE_WITHIN_S
    keys: dict[tuple[str, int], KeyPath] = {}
    for key, host, port in wanted:
        if port < 0:
            continue
        if port and (other := keys.setdefault((host, port), key)) != key:
            yield key, f"{host}:{port} is the address of {'.'.join(map(str, other))}, too: choose another port (0 = any free one)"
        elif fault := _port_fault(host, port, deadline_s):
            yield key, fault


def _gateway_ports(settings: Settings) -> list[tuple[KeyPath, str, int]]:
    gateway = settings.gateway
    plain = [(("gateway", "port"), gateway.host, gateway.port)] if gateway.port != NO_LISTENER else []
    others = ((("listeners", index, "port"), one.host, one.port) for index, one in enumerate(settings.listeners))
    return [*plain, *others]


def _metrics_ports(settings: Settings, *names: str) -> list[tuple[KeyPath, str, int]]:
    return [(("metrics", name), settings.metrics.host, getattr(settings.metrics, name)) for name in names]


def _port_fault(host: str, port: int, deadline_s: float) -> str:
    """Says why nobody can listen there; empty if somebody can."""
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline_s:
                return f"cannot listen on {host}:{port}: {error.strerror or error}; {_port_advice(error)}"
        else:
            return ""
        time.sleep(_FREE_POLL_S)


def _port_advice(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "give a host name or an address of this machine; 0.0.0.0 = all"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "choose a port from 1024 on, or allow this user low ports"
    return "choose another port (0 = any free one), or stop what is listening there"


def _unreadable(path: Path) -> str:
    try:
        path.read_bytes()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}; give a PEM file that this user may read"
    return ""
