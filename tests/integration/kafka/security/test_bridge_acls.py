"""The rows of a bridge in docs/operate/install.md: with them it works, and each of them is used. No engine runs."""

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from inflight.local.jars import Jars
from streaming.config.settings import Settings
from streaming.topics import ensure_topics
from tests.integration.kafka.security.acl_table import documented
from tests.integration.kafka.security.secure_kafka import secure_kafka
from tests.integration.kafka.security.secured_testbed import PREFIX, running_testbed
from tests.support.mosquitto import Mosquitto, needs_mosquitto
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(480), needs_mosquitto]


def test_a_bridge_needs_exactly_its_rows(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> None:
    rules = {rule for rule in documented(PREFIX, {}) if rule.principal == "bridge"}
    make = tmp_path_factory.mktemp
    with (
        secure_kafka(make("secure"), jars) as (kafka, _),
        running_testbed(kafka, make("testbed")) as bed,
        Mosquitto(make("mosquitto")) as broker,
    ):
        ensure_topics(Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers}, topics={"prefix": PREFIX}))
        bed.add("bridge")
        kafka.allow(rules)
        bed.start("bridge", "bridge", "--set", f"bridge.port={broker.port}")
        device = paho.Client(CallbackAPIVersion.VERSION2, client_id="lamp", protocol=paho.MQTTv5)
        device.connect_timeout = 60.0
        device.connect(broker.host, broker.port)
        device.loop_start()
        for topic in "presence", "up/state":
            device.publish(f"devices/lamp/{topic}", b"online", qos=1).wait_for_publish(30)
        wait_until(lambda: rules <= kafka.allowed(), lambda: f"not needed: {sorted(rules - kafka.allowed())}")
        device.loop_stop()
        assert kafka.refused() == set()
