from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sinks.mqtt.access.authenticator import auth_policy_of
from sinks.mqtt.access.grant import Grant, User
from sinks.mqtt.access.rules import Rules
from sinks.mqtt.settings import GatewaySettings
from streaming.config.errors import ConfigurationError
from streaming.config.settings import Settings, gateway_settings, load_settings
from streaming.reload.access import lost_access_control

LOGIN = {"gateway": {"login": {"password_file": "users", "token_keyfile": "key", "token_issuer": "me", "token_audience": "us"}}}
RULES = {
    "rules": [
        {"users": ["admin"], "client_ids": ["*"]},
        {"users": ["sensor-*"], "client_ids": ["{username}"], "publish": ["up/{username}/#"], "subscribe": []},
    ]
}


def lost(in_force: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [problem.partition(" ")[0] for problem in lost_access_control(Settings(**in_force), Settings(**new))]


def login(**keys: str) -> dict[str, Any]:
    return {"gateway": {"login": keys}}


@pytest.mark.parametrize(
    ("in_force", "new", "expected"),
    [
        (LOGIN, {}, ["gateway.login.password_file"]),
        (LOGIN, login(password_file=""), ["gateway.login.password_file"]),
        (LOGIN, login(token_keyfile="key"), ["gateway.login.token_issuer", "gateway.login.token_audience"]),
        (RULES, {}, ["every"]),
        (
            RULES,
            {"rules": [RULES["rules"][0], {"users": ["sensor-*"]}]},
            [f"rules[1].{key}" for key in ("client_ids", "publish", "subscribe")],
        ),
        (RULES, {"rules": [{"client_ids": ["*"]}]}, ["rules[0].users"]),
    ],
)
@pytest.mark.promise("gateway-reload")
def test_a_file_that_opens_the_door_by_absence_is_refused(
    in_force: dict[str, Any], new: dict[str, Any], expected: list[str]
) -> None:
    assert lost(in_force, new) == expected


@pytest.mark.parametrize(
    ("in_force", "new"),
    [
        ({}, {}),
        ({}, LOGIN),
        (LOGIN, LOGIN),
        (LOGIN, login(password_file="others")),
        (RULES, {"rules": RULES["rules"][:1]}),
        (RULES, {"rules": [{"users": ["sensor-*"], "client_ids": ["*"], "publish": ["#"], "subscribe": ["#"]}]}),
        (RULES, {"rules": [{"users": ["new"]}, *RULES["rules"]]}),
        ({"rules": [{"publish": ["a"]}]}, {"rules": [{"publish": ["#"]}]}),
    ],
)
def test_what_is_said_explicitly_or_allows_less_is_applied(in_force: dict[str, Any], new: dict[str, Any]) -> None:
    assert lost(in_force, new) == []


CONFIGURATIONS = (
    """
[gateway.login]
password_file = "users"
token_keyfile = "key"
token_issuer = "me"

[[rules]]
users = ["admin"]
client_ids = ["*"]
not_subscribe = ["secret"]
[[rules]]
users = ["sensor-*"]
client_ids = ["{username}"]
publish = ["up/{username}/#"]
subscribe = []
[[rules]]
users = ["*"]
publish = ["public"]
subscribe = ["public"]
""",
    """
[[rules]]
publish = ["up/#"]
subscribe = ["public"]
client_ids = ["{username}"]
users = ["sensor-*"]
[[rules]]
subscribe = []
publish = []
users = [""]
client_ids = ["guest-*"]
[gateway]
login = { token_issuer = "me", token_keyfile = "key", password_file = "users" }
""",
)


def allowed(settings: GatewaySettings) -> set[tuple[str, str, str, bool]]:
    """Returns (user, client id, topic, to publish) of all that devices may do on loopback; an empty user has not logged in."""
    policy = auth_policy_of(settings.plain_listener, settings)
    rules = Rules(settings.rules)
    found = set()
    for user, client_id in product(("", "admin", "sensor-1", "else"), ("", "sensor-1", "guest-1", "any")):
        if not user and not policy.is_anonymous_allowed:
            continue
        grant = rules.apply(User(user), asked_client_id=client_id, client_id=client_id or "assigned", will_topic=None)
        if isinstance(grant, Grant):
            for topic in "up/sensor-1/t", "public", "secret":
                found |= {(user, client_id, topic, True)} if grant.may_publish(topic) else set()
                may_subscribe = grant.may_subscribe(topic) and not grant.hides(topic)
                found |= {(user, client_id, topic, False)} if may_subscribe else set()
    return found


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_a_file_that_is_cut_off_anywhere_allows_nothing_more(text: str, tmp_path: Path) -> None:
    file = tmp_path / "inflight.toml"
    file.write_text(text, encoding="utf-8")
    in_force = load_settings(file)
    before, applied = allowed(gateway_settings(in_force)), 0
    for length in range(len(text)):
        file.write_text(text[:length], encoding="utf-8")
        try:
            cut_off = load_settings(file)
        except ConfigurationError:
            continue
        if lost_access_control(in_force, cut_off):
            continue
        applied += 1
        reloaded = gateway_settings(cut_off)
        assert allowed(reloaded) <= before, text[:length]
        if reloaded.login.token_keyfile:
            assert reloaded.login.token_issuer == "me", text[:length]
    assert applied, "a file that lacks only its end is applied"
