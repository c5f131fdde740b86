"""The console refuses foreign requests, and its answers forbid a browser everything that a page does not need."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from inflight.console.live import Live
from tests.unit.inflight.console.console_client import FakeObserver, browser, settings_of


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return browser(settings_of(tmp_path, 'console.names=["console.example"]'), Live(FakeObserver()))


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:1", "console.example", "LOCALHOST"])
def test_a_request_may_name_loopback_and_configured_names(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::1", "10.0.0.1"])
@pytest.mark.parametrize("path", ["/", "/static/console.js", "/nothing"])
def test_a_request_with_any_other_name_is_refused(client: TestClient, host: str, path: str) -> None:
    assert client.get(path, headers={"host": host}).status_code == 400


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_page_asks_for_is_refused_but_a_link_may_be_followed(client: TestClient, site: str) -> None:
    image = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    frame = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=image).status_code == 403
    assert client.get("/", headers=frame).status_code == 403
    assert client.post("/", headers=link).status_code == 403
    assert client.get("/", headers=link).status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/console.js", "/nothing"])
def test_every_answer_forbids_scripts_in_pages_frames_and_copies(client: TestClient, path: str) -> None:
    answer = client.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_a_page_refers_to_nothing_but_the_console(client: TestClient) -> None:
    text = client.get("/").text
    assert "http://" not in text
    assert "https://" not in text
    assert text.count("<script") == text.count('<script src="/static/console.js" defer></script>') == 1
    assert "<style" not in text
    assert " style=" not in text
    assert " onclick=" not in text


def test_the_files_of_the_page_are_served(client: TestClient) -> None:
    assert "javascript" in client.get("/static/console.js").headers["content-type"]
    assert "text/css" in client.get("/static/console.css").headers["content-type"]
    assert client.get("/static/../app.py").status_code == 404
    assert client.get("/static/%2e%2e/app.py").status_code == 404
