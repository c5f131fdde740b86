"""TLS on a gateway's listener: openssl, paho, renewed certificates, client certificates, slow readers."""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from cryptography import x509
from paho.mqtt.enums import CallbackAPIVersion

from sinks.mqtt.access.password_file import HASHER, write_password_file
from sinks.mqtt.settings import GatewaySettings, LoginSettings
from state.commands import SendPublish
from state.events import ClientConnected
from state.model import QoS
from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.integration.gateway.paho_round_trip import publishes_and_receives
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

CONNACK = "20020000"
EXAMPLE = Path(__file__).parents[3] / "examples" / "tls_device.py"


def over_tls(gateway: GatewayUnderTest, authority: Authority, *, listener: int = 1, certificate: Path | None = None) -> RawClient:
    context = ssl.create_default_context(cafile=str(authority.file))
    if certificate is not None:
        context.load_cert_chain(certificate)
    plain = socket.create_connection(gateway.addresses[listener], timeout=DEADLINE_S)
    return RawClient(context.wrap_socket(plain, server_hostname="localhost"))


def s_client(
    gateway: GatewayUnderTest, authority: Authority, *options: str, listener: int = 1
) -> "subprocess.CompletedProcess[str]":
    host, port = gateway.addresses[listener]
    command = ["openssl", "s_client", "-connect", f"{host}:{port}", "-CAfile", str(authority.file), "-verify_return_error"]
    return subprocess.run([*command, *options], input="Q\\n", capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def s_client_is_refused(gateway: GatewayUnderTest, authority: Authority, *options: str, listener: int = 1) -> bool:
    """TLS 1.3 tells a client of it only after its handshake, so the gateway's word counts."""
    before = gateway.counters.sockets_refused["TLS"]
    done = s_client(gateway, authority, *options, listener=listener)
    if done.returncode == 0 and "-tls1_3" not in options:
        return False
    wait_until(lambda: gateway.counters.sockets_refused["TLS"] > before, "it is refused")
    return True


@pytest.fixture(scope="module")
def gateway(authority: Authority) -> Iterator[GatewayUnderTest]:
    """Listeners: 0 plain, 1 TLS, 2 with client certificates."""
    listeners = (authority.listener(), authority.listener(asking=True, anonymous=False))
    with running_gateway(GatewaySettings(listeners=listeners)) as running:
        yield running


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_connects_with_tls_1_2_and_1_3(gateway: GatewayUnderTest, authority: Authority, version: str) -> None:
    done = s_client(gateway, authority, version)
    assert (done.returncode, "Verification: OK" in done.stdout) == (0, True), done.stderr


def test_a_client_certificate_of_another_authority_is_refused(
    gateway: GatewayUnderTest, authority: Authority, tmp_path: Path
) -> None:
    stranger = str(Authority(tmp_path / "other").client("ada"))
    mine = str(authority.client("ada"))
    for version in ("-tls1_2", "-tls1_3"):
        assert s_client_is_refused(gateway, authority, version, listener=2)
        assert s_client_is_refused(gateway, authority, version, "-cert", stranger, "-key", stranger, listener=2)
        assert s_client(gateway, authority, version, "-cert", mine, "-key", mine, listener=2).returncode == 0


def test_the_client_certificate_is_the_login(gateway: GatewayUnderTest, authority: Authority) -> None:
    with over_tls(gateway, authority, listener=2, certificate=authority.client("ada")) as device:
        device.send(connect(payload=text("ada")))
        device.expect(CONNACK)
    with over_tls(gateway, authority, listener=2, certificate=authority.client("ada")) as thief:
        thief.send(connect(payload=text("eve")))
        thief.expect("20020002")
    assert gateway.kafka.of("eve", ClientConnected) == []


def test_a_revoked_device_is_refused_and_each_host_has_its_certificate(authority: Authority) -> None:
    good, revoked, other = (
        authority.client("good"),
        authority.client("revoked"),
        authority.server("other.pem", "other.example.com"),
    )
    listener = replace(
        authority.listener(asking=True, anonymous=False),
        sni_certfiles=(str(other),),
        client_crlfile=authority.revocation_list(revoked),
    )
    with running_gateway(GatewaySettings(listeners=(listener,))) as gateway:
        options = ("-tls1_2", "-cert", str(good), "-key", str(good))
        assert s_client(gateway, authority, *options).returncode == 0
        assert s_client(gateway, authority, *options, "-servername", "other.example.com").stdout.count("CN = other.example.com")
        assert s_client_is_refused(gateway, authority, "-tls1_2", "-cert", str(revoked), "-key", str(revoked))


@pytest.mark.parametrize("version", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])
def test_paho_publishes_and_receives_over_tls(gateway: GatewayUnderTest, authority: Authority, version: int) -> None:
    client_id = f"paho-{version}"
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version)
    client.tls_set(ca_certs=str(authority.file))
    publishes_and_receives(client, client_id, gateway, listener=1)


def test_the_example_of_a_tls_device_runs(authority: Authority, tmp_path: Path) -> None:
    users = tmp_path / "users"
    write_password_file(users, {"pump-7": HASHER.hash("right")})
    listeners = (authority.listener(anonymous=False),)
    with running_gateway(GatewaySettings(listeners=listeners, login=LoginSettings(password_file=str(users)))) as running:
        program = [sys.executable, EXAMPLE, "127.0.0.1", str(running.addresses[1][1]), str(authority.file), "pump-7"]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as device:
            assert device.stdin is not None
            assert device.stdout is not None
            device.stdin.write("right\n")
            device.stdin.close()
            assert device.stdout.readline() == "connected: Success\n"
            for number in (1, 2, 3):
                payload = b"%d" % number
                running.kafka.command("pump-7", SendPublish, packet_id=number, topic="cmd/reboot", payload=payload, qos=QoS(1))
                assert device.stdout.readline() == f"cmd/reboot {number}\n"
            assert device.poll() is None
            device.terminate()


def test_a_renewed_certificate_is_shown_to_newcomers_and_nobody_is_dropped(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    count = 50
    with running_gateway(GatewaySettings(listeners=(authority.listener(),))) as gateway:
        devices = [over_tls(gateway, authority) for _ in range(count)]
        for number, device in enumerate(devices):
            device.send(connect(keep_alive_s=0, payload=text(f"d{number}")))
        for device in devices:
            device.expect(CONNACK)
        before = serial_number(gateway, authority)
        authority.server()
        wait_until(lambda: serial_number(gateway, authority) != before, "the new one is shown")  # within seconds, unasked
        before = serial_number(gateway, authority)
        authority.server()
        gateway.reload()
        wait_until(lambda: serial_number(gateway, authority) != before, "the new one is shown")
        for device in devices:
            device.send("c000")
        for device in devices:
            device.expect("d000")
            device.socket.close()


def test_a_broken_certificate_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    with running_gateway(GatewaySettings(listeners=(authority.listener(),))) as gateway:
        before = serial_number(gateway, authority)
        (authority.directory / "server.pem").write_text("broken", encoding="utf-8")
        gateway.reload()
        with gateway.socket() as device:  # a turn of the loop later
            device.send(connect())
            device.expect(CONNACK)
        assert serial_number(gateway, authority) == before


def serial_number(gateway: GatewayUnderTest, authority: Authority) -> int:
    with over_tls(gateway, authority) as device:
        certificate = device.socket.getpeercert(binary_form=True)  # type: ignore[attr-defined]
        return x509.load_der_x509_certificate(certificate).serial_number


def test_a_device_that_never_begins_a_handshake_is_closed(authority: Authority) -> None:
    settings = GatewaySettings(listeners=(authority.listener(),), connect_timeout_ms=500)
    with (
        running_gateway(settings) as gateway,
        RawClient(socket.create_connection(gateway.addresses[1], timeout=DEADLINE_S)) as silent,
    ):
        silent.expect_closed()


def test_mqtt_without_tls_is_closed(gateway: GatewayUnderTest) -> None:
    with RawClient(socket.create_connection(gateway.addresses[1], timeout=DEADLINE_S)) as device:
        device.send(connect())
        assert CONNACK not in device.rest().hex()


def test_a_device_that_does_not_read_is_sent_no_more_than_the_buffers_hold(authority: Authority) -> None:
    settings = GatewaySettings(listeners=(authority.listener(),), stalled_write_timeout_ms=1_000, max_write_buffer_bytes=65_536)
    with running_gateway(settings) as gateway, over_tls(gateway, authority) as slow:
        slow.send(connect(keep_alive_s=0, payload=text("slow")))
        slow.expect(CONNACK)
        for _ in range(400):
            gateway.kafka.command("slow", SendPublish, packet_id=0, topic="t", payload=b"x" * 50_000, qos=QoS(0))
        wait_until(lambda: gateway.counters.qos0_dropped > 0, "the buffers are full")
        wait_until(lambda: gateway.counters.connections_open == 0, "it is closed")
