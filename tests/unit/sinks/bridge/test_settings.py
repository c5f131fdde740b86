"""The section [bridge]: the same defaults as the bridge itself, and what is refused before anything starts."""

import dataclasses

import pytest

from sinks.bridge.settings import Acknowledgement, BridgeSettings, PresenceSource
from streaming.config.errors import ConfigurationError
from streaming.config.settings import Settings, bridge_settings, load_settings


def test_the_defaults_are_those_of_the_bridge() -> None:
    ours, theirs = dataclasses.asdict(bridge_settings(Settings())), dataclasses.asdict(BridgeSettings())
    assert {key for key in theirs if ours[key] != theirs[key]} == {"kafka_options"}


def test_settings_reach_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT__BRIDGE__PASSWORD", "secret")
    settings = bridge_settings(
        load_settings(
            overrides=[
                "bridge.mqtt_version=3.1.1",
                "bridge.topic_template=d/{client_id}/{message_id}/{topic}",
                "bridge.acknowledgement=broker",
                "bridge.presence=always",
                'bridge.clients=["a", "b"]',
                "bridge.keep_alive_ms=30s",
                "bridge.username=me",
                "bridge.backoff.max=5s",
                "topics.prefix=t",
            ]
        )
    )
    assert (settings.mqtt_version, settings.acknowledgement, settings.presence) == (
        4,
        Acknowledgement.BROKER,
        PresenceSource.ALWAYS,
    )
    assert (settings.clients, settings.keep_alive_s, settings.backoff.max_ms) == (("a", "b"), 30, 5_000)
    assert (settings.username, settings.password, settings.events_topic) == ("me", "secret", "t.events")
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("bridge.topic_template=devices/{client_id}", "{topic} must stand in it once"),
        ("bridge.mqtt_version=3.1.1", "put {message_id} in the template"),
        ("bridge.backoff.max=1ms", "less than backoff.initial"),
        ("bridge.uplink_group=a/b", "bridge.uplink_group"),
    ],
)
def test_contradictions_are_refused_with_what_to_do(override: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(overrides=[override])
    assert words in str(caught.value)
