"""inflight.local.remembered_ports: `inflight up` listens where it did before."""

import socket
from pathlib import Path

import pytest

from inflight.local.child_process import free_port
from inflight.local.remembered_ports import RememberedPorts


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def ports(tmp_path: Path, said: list[str]) -> RememberedPorts:
    return RememberedPorts(tmp_path, say=said.append)


def test_the_next_start_has_the_ports_of_the_last_one(ports: RememberedPorts, tmp_path: Path, said: list[str]) -> None:
    numbers = {name: ports.choose(name) for name in ("Kafka", "the console")}
    for name, port in numbers.items():
        ports.remember(name, port)
    later = RememberedPorts(tmp_path, say=said.append)
    assert {name: later.choose(name, preferred=free_port()) for name in numbers} == numbers
    assert said == []


def test_the_first_start_has_the_preferred_port_if_it_is_free(ports: RememberedPorts, said: list[str]) -> None:
    wanted = free_port()
    assert ports.choose("Kafka", preferred=wanted) == wanted
    with socket.create_server(("127.0.0.1", wanted)):
        assert ports.choose("Kafka", preferred=wanted) not in (0, wanted)
    assert said == []


def test_a_port_that_has_to_change_is_named(ports: RememberedPorts, said: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports.remember("Kafka", port)
        other = ports.choose("Kafka")
    assert said == [f"warning: port {port} of the last start is in use, so Kafka has port {other} from now on"]


def test_a_damaged_file_is_as_good_as_none(ports: RememberedPorts, tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text("{")
    ports.remember("Kafka", 9092)
    assert (tmp_path / "ports.json").read_text() == '{\n  "Kafka": 9092\n}\n'
