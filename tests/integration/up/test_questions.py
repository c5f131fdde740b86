"""Plain questions to a running `inflight up` are answered without Spark, and show text from outside as what it is."""

import json
import os
import socket
import struct
import subprocess
import sys
import uuid
from pathlib import Path

from kafka import KafkaProducer
from typer.testing import CliRunner

from inflight.cli import app
from tests.integration.up.conftest import SharedUp
from tests.support.waiting import wait_until

REASON = "\x1b]0;owned\x07\u202e\u2028"
ESCAPED = r"\x1b]0;owned\x07\u202e\u2028"


def inflight(up: SharedUp, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Runs a command that cannot start a JVM."""
    command = [sys.executable, "-m", "inflight", *arguments, "--data-dir", str(up.data_dir)]
    environment = os.environ | {"JAVA_HOME": "/nonexistent", "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == code, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done


def asked(up: SharedUp, *arguments: str) -> str:
    """Returns what a command prints, run in this process: to ask again and again costs a second less each time."""
    return CliRunner().invoke(app, [*arguments, "--data-dir", str(up.data_dir)]).stdout


def send(up: SharedUp, client_id: str, message_id: str) -> None:
    producer = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
    headers = [("mqtt-topic", b"t"), ("mqtt-qos", b"1"), ("message-id", message_id.encode())]
    producer.send("inflight.messages", b"open", key=client_id.encode(), headers=headers).get(30)
    producer.close()


def text(value: str) -> bytes:
    return struct.pack("!H", len(value.encode())) + value.encode()


def refuse_one_message(up: SharedUp, client_id: str) -> None:
    """Connects by MQTT 5, refuses the first PUBLISH with 0x87 and REASON, and leaves."""
    with socket.create_connection(up.mqtt, timeout=60) as device, device.makefile("rb") as packets:
        connect = b"\x00\x04MQTT\x05\x00\x00\x00\x00" + text(client_id)  # a clean start would end what waits
        device.sendall(bytes([0x10, len(connect)]) + connect)
        while True:
            kind, length = packets.read(2)
            body = packets.read(length)
            if kind >> 4 == 3:
                break
        at = 2 + struct.unpack("!H", body[:2])[0]
        properties = b"\x1f" + text(REASON)
        puback = body[at : at + 2] + b"\x87" + bytes([len(properties)]) + properties
        device.sendall(bytes([0x40, len(puback)]) + puback)
        wait_until(lambda: "dead letter" in trace(up, f"{client_id}-1"), "the dead letter")


def trace(up: SharedUp, message_id: str) -> str:
    return asked(up, "trace", message_id)


def test_a_devices_reason_string_reaches_no_terminal(up: SharedUp) -> None:
    client_id = f"plant:key:{uuid.uuid4().hex[:6]}"
    send(up, client_id, f"{client_id}-1")
    refuse_one_message(up, client_id)
    for arguments in ("trace", f"{client_id}-1"), ("dead-letters", "--client", client_id), ("client", client_id):
        done = inflight(up, *arguments)
        shown = done.stdout + done.stderr
        assert client_id in shown
        assert all(character.isprintable() or character == "\n" for character in shown), shown
    assert ESCAPED in trace(up, f"{client_id}-1")
    (letter,) = inflight(up, "dead-letters", "--client", client_id, "--json").stdout.splitlines()
    assert letter.isprintable()
    assert REASON in json.loads(letter)["detail"]


def test_plain_questions_need_no_spark(up: SharedUp) -> None:
    client_id = f"gate-{uuid.uuid4().hex[:6]}"
    send(up, client_id, f"{client_id}-1")
    waits = f"waits in {client_id}'s queue since"
    wait_until(lambda: waits in trace(up, f"{client_id}-1"), "the message in the queue")
    assert f"{client_id} has never connected" in inflight(up, "trace", f"{client_id}-1").stdout
    told = inflight(up, "client", client_id).stdout
    assert told.splitlines()[0] == f"{client_id} has never connected; 0 messages are in flight, 1 wait"
    assert f"{client_id}-1" in told
    assert inflight(up, "sessions").stdout.startswith("client id")
    (session, *_) = inflight(up, "sessions", "--json").stdout.splitlines()
    assert json.loads(session).keys() >= {"client_id", "connected", "inflight", "queued", "oldest_unacked", "quarantined"}
    assert "sent" in inflight(up, "replay", "--client", client_id, "--dry-run").stderr
    assert json.loads(asked(up, "status", "--json"))["sessions"]["source"] == "engine"
