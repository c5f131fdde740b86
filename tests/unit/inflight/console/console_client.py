"""The console as a browser's requests see it, with measurements in place of a running system."""

from pathlib import Path

from starlette.testclient import TestClient

from inflight.console.app import console_app
from inflight.console.live import Live
from inflight.status.measurements import KafkaSeen, Measurements
from streaming.config.settings import Settings, load_settings
from tests.unit.inflight.status.test_findings import WELL

SCRIPT = "<script>alert(1)</script>"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"


class Seen:
    """An observer that has seen what it is told."""

    def __init__(self, seen: Measurements = WELL) -> None:
        self.seen = seen
        self.looks = 0

    def kafka(self) -> KafkaSeen:
        return self.seen.kafka

    def look(self, kafka: KafkaSeen) -> Measurements:
        self.looks += 1
        return self.seen


def settings_of(data_dir: Path, *overrides: str) -> Settings:
    return load_settings(None, [f"engine.data_dir={data_dir}", *overrides])


def browser(settings: Settings, live: Live) -> TestClient:
    return TestClient(console_app(settings, live), base_url="http://127.0.0.1:8000", follow_redirects=False)
