"""streaming.reload.access"""

from typing import Any

import pytest

from streaming.config.settings import Settings
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
