"""inflight.local.start_checks: what is refused before a process is started, with where it was written and what to do."""

import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from inflight.local.child_process import free_port
from inflight.local.data_directory import is_in_use, locked
from inflight.local.errors import DataDirectoryInUse
from inflight.local.start_checks import KAFKA_PORT, bridge_faults, engine_faults, gateway_faults, port_faults, up_faults
from streaming.config.errors import ConfigurationError
from streaming.config.settings import Settings, load_settings

ODD_NAME = "a b'c\"d,e\\f%20g ü$x#&{y}[z]*?~:@!"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is taken stays taken here."""
    monkeypatch.setattr("inflight.local.start_checks._FREE_WITHIN_S", 0.1)


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., list[str]]:
    """The problems of `inflight up` with some settings on a directory that would do."""

    def call(*overrides: str, text: str = "", kafka_port: int = 0) -> list[str]:
        file = tmp_path / "inflight.toml"
        file.write_text(text or "[gateway]\n")
        given = (f"engine.data_dir={tmp_path / 'data'}", "gateway.port=0", *overrides)
        try:
            load_settings(file, given, checks=partial(up_faults, kafka_port=kafka_port))
        except ConfigurationError as error:
            return [str(problem) for problem in error.problems]
        return []

    return call


def test_a_machine_that_allows_everything_is_not_complained_about(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    assert refused() == []
    assert not (tmp_path / "data").exists()


def test_a_file_in_the_place_of_the_data_directory_is_named(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in file, file / "below":
        [problem] = refused(f"engine.data_dir={path}")
        assert problem.startswith(f"--set engine.data_dir={path}: engine.data_dir: {file} is not a directory: give a directory")


@pytest.mark.parametrize("path", ["/proc/inflight", "/sys/inflight/data"])
def test_a_directory_that_cannot_be_written_is_named(refused: Callable[..., list[str]], path: str) -> None:
    [problem] = refused(f"engine.data_dir={path}")
    assert f"engine.data_dir: {path} cannot be written: " in problem
    assert "give a directory that this user may write" in problem


def test_an_unusable_checkpoint_is_named_by_its_own_key(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for location in str(file), file.as_uri():
        [problem] = refused(f"engine.checkpoint_location={location}")
        assert f"engine.checkpoint_location: {file} is not a directory" in problem
    assert refused("engine.checkpoint_location=s3a://bucket/checkpoint") == []


@pytest.mark.parametrize("name", ["a\nb", "bell\a", "escape\x1b[2J", "\u202e", "😀"])
def test_names_that_programs_break_are_refused(refused: Callable[..., list[str]], tmp_path: Path, name: str) -> None:
    [problem] = refused(f"engine.data_dir={tmp_path / name}")
    assert "has control characters or emoji" in problem
    assert name not in problem.partition("engine.data_dir: ")[2]
    assert refused(f"engine.data_dir={tmp_path / ODD_NAME}") == []


@pytest.mark.parametrize("part", ["logs", "kafka", "checkpoint"])
def test_a_part_of_the_data_directory_that_is_a_file_is_named(
    refused: Callable[..., list[str]], tmp_path: Path, part: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / part).touch()
    [problem] = refused()
    assert f"engine.data_dir: {tmp_path / 'data' / part} is not a directory" in problem


def test_everything_that_is_wrong_is_said_at_once(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = """
            [gateway.login]
            password_file = "/nowhere/users"
            token_keyfile = "/nowhere/key.pem"
            [[listeners]]
            port = 0
            tls_certfile = "/nowhere/cert.pem"
            client_cafile = "/nowhere/ca.pem"
            [topics]
            replication_factor = 3
            min_insync_replicas = 2
        """
        problems = refused(f"gateway.port={port}", f"console.port={port}", text=text, kafka_port=port)
    found = {problem.partition(": ")[2].partition(": ")[0]: problem for problem in problems}
    assert "/nowhere/users cannot be read: No such file" in found["gateway.login.password_file"]
    assert "/nowhere/key.pem cannot be read: No such file" in found["gateway.login.token_keyfile"]
    assert "/nowhere/cert.pem cannot be read: No such file" in found["listeners[0].tls_certfile"]
    assert found["listeners[0].tls_certfile"].startswith(f"{tmp_path / 'inflight.toml'}:7: ")
    assert "/nowhere/ca.pem cannot be read: No such file" in found["listeners[0].client_cafile"]
    assert "is 3, and `inflight up` runs one broker" in found["topics.replication_factor"]
    assert "is 2, and `inflight up` runs one broker" in found["topics.min_insync_replicas"]
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port" in found["gateway.port"]
    assert f"127.0.0.1:{port} is the address of gateway.port, too" in found["console.port"]
    assert len(problems) == 9


def test_a_flag_without_a_key_is_named_as_it_was_written() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags, wanted = {KAFKA_PORT: f"--kafka-port {port}"}, [(KAFKA_PORT, "127.0.0.1", port)]
        with pytest.raises(ConfigurationError) as caught:
            load_settings(None, (), flags=flags, checks=lambda settings: port_faults(wanted))
    assert str(caught.value.problems[0]).startswith(f"--kafka-port {port}: cannot listen on 127.0.0.1:{port}: ")


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_named(host: str) -> None:
    for port in 0, free_port():
        [(key, fault)] = port_faults([(("gateway", "port"), host, port)])
        assert key == ("gateway", "port")
        assert "give a host name or an address of this machine" in fault


def test_a_certificate_of_another_key_is_refused(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    [problem] = refused(text=f'[[listeners]]\nport = 0\ntls_certfile = "{tmp_path}/cert.pem"\nanonymous = true\n')
    assert "listeners[0].tls_certfile" in problem
    assert "PEM files are needed" in problem


def test_engine_and_gateway_check_what_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(
            engine={"data_dir": tmp_path / "file"},
            gateway={"port": port},
            metrics={"engine_port": port, "gateway_port": free_port()},
        )
        assert [key for key, _ in engine_faults(settings)] == [("engine", "data_dir"), ("metrics", "engine_port")]
        assert [key for key, _ in gateway_faults(settings, is_one_of_several=False)] == [("gateway", "port")]
        assert list(gateway_faults(settings, is_one_of_several=True)) == []


def test_a_bridge_checks_the_files_of_its_tls() -> None:
    tls = {"tls_cafile": "/nowhere/ca.pem", "tls_keyfile": "/nowhere/key.pem"}
    assert [key for key, _ in bridge_faults(Settings(bridge={"tls": True, **tls}))] == [("bridge", name) for name in tls]
    assert list(bridge_faults(Settings(bridge=tls))) == []


def test_a_full_disk_is_named(refused: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    [problem] = refused()
    assert f"engine.data_dir: the disk of {tmp_path} is full: make room there" in problem


@pytest.mark.processes
def test_a_gateway_checks_its_start_without_spark() -> None:
    code = "import sys, inflight.local.start_checks; print('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_ports_of_a_running_up_are_not_blamed(refused: Callable[..., list[str]], tmp_path: Path) -> None:
    with locked(tmp_path / "data", say=print), socket.create_server(("127.0.0.1", 0)) as taken:
        assert refused(f"gateway.port={taken.getsockname()[1]}") == []
        assert is_in_use(tmp_path / "data")
        with pytest.raises(DataDirectoryInUse), locked(tmp_path / "data", say=print):
            pass
    assert not is_in_use(tmp_path / "data")


def test_the_data_directory_is_its_users_alone(tmp_path: Path) -> None:
    said: list[str] = []
    ours, others = tmp_path / "ours", tmp_path / "others"
    for directory in ours, others:
        directory.mkdir()
        directory.chmod(0o755)
    (others / "thesis.txt").touch()
    for directory in tmp_path / "new", ours, others:
        with locked(directory, say=said.append):
            pass
    modes = [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("new", "ours", "others")]
    assert modes == ["0o700", "0o700", "0o755"]
    [warning] = said
    assert f"others can read {others}" in warning
