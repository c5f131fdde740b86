"""A backend publishes, sends to many, and asks who got it: by the Producer and the commands, on a running `inflight up`."""

import json
from typing import Any

from prometheus_client import CollectorRegistry

from inflight import Producer
from tests.integration.up.conftest import SharedUp
from tests.integration.up.paho_subscriber import PahoSubscriber
from tests.integration.up.test_questions import asked, inflight
from tests.support.waiting import wait_until

OURS = ("asked-", "many-")


def documents(up: SharedUp, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in asked(up, *arguments, "--json").splitlines()]


def ends(up: SharedUp, message_id: str) -> dict[str, str]:
    """Returns how the message ended with each client of this module. Others may subscribe to everything."""
    steps = documents(up, "trace", message_id)
    return {
        step["client_id"]: step["outcome"]
        for step in steps
        if step["step"] in ("finished", "receipt") and step["client_id"].startswith(OURS)
    }


def online(up: SharedUp) -> dict[str, bool | None]:
    return {one["client_id"]: one["is_online"] for one in subscribers(up)}


def subscribers(up: SharedUp) -> list[dict[str, Any]]:
    found = documents(up, "subscriptions", "--topic", "asked/1")
    return [one for one in found if one["client_id"].startswith(OURS)]


def test_a_publication_is_followed_from_the_command_to_each_device(up: SharedUp) -> None:
    away = PahoSubscriber(up.mqtt, "asked-away", keeps_session=True)
    with away:
        away.subscribe("asked/+", 1)
    with PahoSubscriber(up.mqtt, "asked-here") as here:
        here.subscribe("asked/#", 2)
        assert [(one["client_id"], one["topic_filter"], one["qos"]) for one in subscribers(up)] == [
            ("asked-away", "asked/+", 1),
            ("asked-here", "asked/#", 2),
        ]
        wait_until(lambda: online(up) == {"asked-away": False, "asked-here": True}, "what the engine says of connections")
        message_id = inflight(up, "publish", "--topic", "asked/1", "--payload", "x", "--qos", "2").stdout.strip()
        assert here.payloads(1) == [b"x"]
        wait_until(lambda: ends(up, message_id) == {"asked-here": "delivered"}, "the end for who is connected")
        first, *others = documents(up, "trace", message_id)
        assert (first["step"], first["client_id"]) == ("published", "")
        assert {(step["step"], step["client_id"]) for step in others} >= {
            ("submitted", "asked-away"),
            ("submitted", "asked-here"),
            ("queued", "asked-away"),
        }
        assert "waits in asked-away's queue" in asked(up, "trace", message_id)
        with away:
            assert away.payloads(1) == [b"x"]
        wait_until(lambda: set(ends(up, message_id)) == {"asked-here", "asked-away"}, "the end for who came back")


def test_many_clients_get_one_message_each_with_a_receipt(up: SharedUp) -> None:
    names = [f"many-{number}" for number in range(5)]
    with Producer(up.kafka, registry=CollectorRegistry()) as producer:
        devices = [PahoSubscriber(up.mqtt, name).__enter__() for name in names]
        try:
            for number in range(10):
                producer.send_many(
                    [*names, "many-nobody"], "cmd", b"%d" % number, message_id=f"many-{number}", expiration_ms=60_000
                )
            for device in devices:
                assert device.payloads(10) == [b"%d" % number for number in range(10)]
        finally:
            for device in devices:
                device.__exit__()
    wait_until(lambda: ends(up, "many-9") == dict.fromkeys(names, "delivered"), "an outcome of each client")
