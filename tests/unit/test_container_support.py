"""Tests what `make test-containers` decides: which engine and images, and what it says where no container can be run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.containers.composition import last_role
from tests.support.containers.container_engine import (
    GIB,
    NEEDED_BYTES,
    ROOT,
    CannotRunContainers,
    CommandFailed,
    ContainerEngine,
    end_engine,
    refuse_without_dockerd,
    sockets_directory,
)
from tests.support.containers.images import (
    LABEL,
    OURS,
    STAND_INS,
    Images,
    base_command,
    base_environment,
    base_image,
    debian_and_python,
    images_of,
    stand_in_of,
)
from tests.support.containers.stand_ins.kafka.run import properties
from tests.support.waiting import wait_until

BASE = "python:3.11-slim-bookworm"
ONE_MACHINE = ROOT / "docker-compose.yml"
CLUSTER = ROOT / "conf" / "cluster" / "docker-compose.yml"
LONGEST_SOCKET_PATH = 107


@pytest.mark.parametrize(
    ("dockerd", "user_id", "free_bytes", "todo"),
    [
        (None, 0, NEEDED_BYTES, "apt-get install docker.io"),
        ("/usr/sbin/dockerd", 1_000, NEEDED_BYTES, "adduser $USER docker"),
        ("/usr/sbin/dockerd", 0, GIB, "10 GiB of disk, and 1.0 GiB are free"),
    ],
)
def test_a_machine_that_cannot_start_an_engine_says_what_to_do(
    dockerd: str | None, user_id: int, free_bytes: int, todo: str
) -> None:
    with pytest.raises(CannotRunContainers, match=re.escape(todo)):
        refuse_without_dockerd(dockerd, user_id, free_bytes)


def test_root_with_dockerd_and_disk_may_start_an_engine() -> None:
    refuse_without_dockerd("/usr/sbin/dockerd", 0, NEEDED_BYTES)


@pytest.mark.processes
@pytest.mark.parametrize("is_own", [True, False])
def test_only_the_own_engine_is_ended(is_own: bool, tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    command = [sys.executable, "-c", "import time; time.sleep(60)", str(sockets) if is_own else "another program"]
    with subprocess.Popen(command) as process:
        try:
            wait_until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "the process has its command line")
            (sockets / "pid").write_text(str(process.pid))
            end_engine(sockets)
            assert (process.poll() is not None) == is_own
            assert not sockets.exists()
        finally:
            process.kill()


def test_the_same_data_has_the_same_socket_of_a_possible_length() -> None:
    deep = Path("/", *["a-long-name"] * 40)
    assert sockets_directory(deep) == sockets_directory(deep)
    assert sockets_directory(deep) != sockets_directory(deep / "other")
    assert len(str(sockets_directory(deep) / "docker.sock")) < LONGEST_SOCKET_PATH


@pytest.mark.parametrize("file", [ONE_MACHINE, CLUSTER], ids=["one machine", "cluster"])
def test_every_image_but_grafana_has_a_stand_in(file: Path) -> None:
    named = set(images_of(file).values()) - {OURS}
    assert {image.partition(":")[0] for image in named if stand_in_of(image) is None} == {"grafana/grafana"}


def test_the_base_of_the_image_can_be_made_from_debian() -> None:
    assert debian_and_python(base_image()) == ("bookworm", "python3.11")
    assert debian_and_python("python:3.13-slim-trixie") == ("trixie", "python3.13")
    with pytest.raises(CannotRunContainers, match="cannot be pulled"):
        debian_and_python("alpine:3.20")


def test_a_stand_in_has_the_certificates_of_the_machine_if_there_are_any() -> None:
    assert any("update-ca-certificates" in word for word in base_command(base_image(), has_certificates=True))
    assert not any("update-ca-certificates" in word for word in base_command(base_image(), has_certificates=False))


def test_a_stand_in_has_the_settings_of_pip_and_of_the_proxies_only() -> None:
    found = base_environment({"PIP_INDEX_URL": "a", "https_proxy": "b", "no_proxy": "", "HOME": "/root", "AWS_SECRET": "c"})
    assert found == {"PIP_CERT": "/etc/ssl/certs/ca-certificates.crt", "PIP_INDEX_URL": "a", "https_proxy": "b"}


def test_kafka_gets_its_settings_by_the_names_of_its_image() -> None:
    environment = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_LOG_DIRS": "/var/lib/kafka/data",
        "KAFKA_A__B___C_D": "x=y",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "CLUSTER_ID": "abc",
        "PATH": "/bin",
    }
    assert properties(environment) == "a_b-c.d=x=y\nlog.dirs=/var/lib/kafka/data\nnode.id=1\n"


class FakeEngine(ContainerEngine):
    """Has images, some of which can be pulled. labels: by image, what a stand-in was made of; empty for a pulled one."""

    def __init__(self, labels: dict[str, str], pullable: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.labels = labels
        self.pullable = pullable
        self.commands: list[tuple[str, ...]] = []

    def run(self, *command: str, within_s: float = 60.0) -> str:
        self.commands.append(command)
        match command[1:]:
            case ("image", "inspect", *_, image):
                if image not in self.labels:
                    raise CommandFailed("no such image")
                return json.dumps({LABEL: self.labels[image]} if self.labels[image] else None)
            case ("pull", *_, image):
                if image not in self.pullable:
                    raise CommandFailed("no such host")
        return ""

    def did(self, word: str) -> list[str]:
        """Returns the last words of the commands of a kind."""
        return [command[-1] for command in self.commands if command[1] == word]


def test_what_can_be_pulled_has_no_stand_in() -> None:
    engine = FakeEngine({}, pullable=frozenset({BASE, "haproxy:2.6"}))
    images = Images(engine, BASE)
    images.provide_base()
    assert images.provide(["haproxy:2.6", OURS]) == set()
    assert (engine.did("pull"), engine.did("build"), images.stand_ins) == ([BASE, "haproxy:2.6"], [], set())


def test_what_was_pulled_is_not_pulled_again() -> None:
    engine = FakeEngine({BASE: "", "haproxy:2.6": ""})
    images = Images(engine, BASE)
    images.provide_base()
    images.provide(["haproxy:2.6"])
    assert (engine.did("pull"), engine.did("build"), images.stand_ins) == ([], [], set())


def test_what_cannot_be_pulled_is_built_or_named_as_missing() -> None:
    engine = FakeEngine({})
    images = Images(engine, BASE)
    assert images.provide(["haproxy:2.6", "grafana/grafana:12.1.0"]) == {"grafana/grafana:12.1.0"}
    assert engine.did("build") == [str(STAND_INS / "haproxy")]
    assert images.stand_ins == {"haproxy:2.6"}


def test_a_base_without_mmdebstrap_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(CannotRunContainers, match="mmdebstrap, which makes a stand-in of Debian, is not installed"):
        Images(FakeEngine({}), BASE).provide_base()


def test_a_base_is_made_anew_only_if_its_recipe_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/mmdebstrap")
    engine = FakeEngine({BASE: "another recipe"})
    Images(engine, BASE).provide_base()
    (made,) = [command[-1] for command in engine.commands if command[0] == "bash"]
    recipe = made.partition(f"LABEL {LABEL}=")[2].partition("'")[0]
    engine = FakeEngine({BASE: recipe})
    Images(engine, BASE).provide_base()
    assert [command for command in engine.commands if command[0] == "bash"] == []


@pytest.mark.parametrize(
    ("log", "role"),
    [
        ("", ""),
        ("[info] settings\nready standby metrics=0.0.0.0:9461\n", "standby"),
        ("ready standby\nready engine metrics=0.0.0.0:9461\n[info] x\n", "engine"),
        ("not ready engine\n", ""),
    ],
)
def test_the_role_of_an_engine_is_what_it_has_said_last(log: str, role: str) -> None:
    assert last_role(log) == role
