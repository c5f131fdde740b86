"""A trace from a backend to a device and back, and its spans at a collector (docs/guides/tracing.md)."""

import queue
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from inflight import Uplink
from tests.integration.up.conftest import SharedUp
from tests.support.collector import KeepingCollector
from tests.support.inflight_process import InflightProcess
from tests.support.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "traced.py"
PAGE_TEXT = (ROOT / "docs" / "guides" / "tracing.md").read_text(encoding="utf-8")


@contextmanager
def echoing_device(up: SharedUp, client_id: str) -> Iterator[None]:
    """A device of MQTT 5 that publishes what it gets, with the user properties that came."""
    subscribed: queue.Queue[bool] = queue.Queue()

    def echo(client: paho.Client, _: object, message: paho.MQTTMessage) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = message.properties.UserProperty
        client.publish(f"echo/{client_id}", message.payload, qos=1, properties=properties)

    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
    client.on_connect = lambda *_: client.subscribe("commands/#", qos=2)
    client.on_subscribe = lambda *_: subscribed.put(True)
    client.on_message = echo
    client.connect(*up.mqtt)
    client.loop_start()
    try:
        subscribed.get(timeout=DEADLINE_S)
        yield
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.promise("tracing")
def test_a_trace_reaches_the_device_and_comes_back_with_its_spans(
    up: SharedUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with KeepingCollector() as collector:
        (written,) = re.findall(r"^inflight (spans .*)$", PAGE_TEXT, flags=re.MULTILINE)
        arguments = written.replace("http://127.0.0.1:4318/v1/traces", collector.endpoint).split()
        with InflightProcess(tmp_path, "spans", *arguments, "--data-dir", str(up.data_dir)) as exporter:
            with echoing_device(up, "lamp-traced"):
                monkeypatch.setattr(sys, "argv", ["traced.py", up.kafka])
                runpy.run_path(str(EXAMPLE))
                outcome, trace = capsys.readouterr().out.split()
                with Uplink(up.kafka, group="test-tracing", topics=["echo/lamp-traced"]) as uplink:
                    assert next(uplink).properties.user_properties == (("traceparent", trace),)
            assert outcome == "delivered"
            _, trace_id, parent_id, _ = trace.split("-")
            spans = wait_until(lambda: collector.of_trace(trace_id), f"the spans of {trace}")
            exporter.stop()
    whole, *stations = sorted(spans, key=lambda span: span.name != "inflight deliver")
    assert whole.parent_span_id.hex() == parent_id
    assert {(span.name, span.parent_span_id) for span in stations} == {
        ("inflight queue", whole.span_id),
        ("inflight exchange", whole.span_id),
    }
