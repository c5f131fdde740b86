"""Applies the rules of the configuration to a user. Pure."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from glob import escape
from typing import Final

from sinks.mqtt.access.grant import EVERYTHING, Grant, LoginRefusal, LoginRefused, User
from sinks.mqtt.access.topic_patterns import TopicPatterns, filled_in
from sinks.mqtt.settings import DEFAULT_RULES, AccessRule
from state.model import ReasonCode

_EVERY_TOPIC: Final = "#"


class Rules:
    """The rules in their order; empty = DEFAULT_RULES."""

    def __init__(self, rules: Sequence[AccessRule]) -> None:
        self._rules = tuple(rules) or DEFAULT_RULES

    def apply(self, user: User, *, asked_client_id: str, client_id: str, will_topic: str | None) -> Grant | LoginRefused:
        """Applies the first rule for this user. Returns what it grants, or why it refuses the login.

        Args:
            asked_client_id: The client id of CONNECT, which may be empty.
            client_id: The client id that the connection gets.
            will_topic: The topic of the will; None = there is no will.
        """
        rule = next((rule for rule in self._rules if any(fnmatchcase(user.name, pattern) for pattern in rule.users)), None)
        if rule is None:
            return LoginRefused(LoginRefusal.CLIENT_ID, "no rule is for this user")
        if not _allows_client_id(rule.client_ids, asked_client_id, user.name):
            detail = "the rule of this user does not allow the client id"
            return LoginRefused(LoginRefusal.CLIENT_ID, detail, ReasonCode.CLIENT_ID_NOT_VALID)
        if user.client_id is not None and user.client_id != asked_client_id:
            return LoginRefused(LoginRefusal.CLIENT_ID, "the token is for another client id")
        values = {"username": user.name, "client_id": client_id}
        publish, subscribe = (
            _restrictions(rule.publish, user.publish, values),
            _restrictions(rule.subscribe, user.subscribe, values),
        )
        hidden = TopicPatterns(rule.not_subscribe, values) if rule.not_subscribe else None
        if not (user.name or publish or subscribe or hidden):
            return EVERYTHING
        grant = Grant(user.name, publish, subscribe, user.valid_ms, hidden)
        if will_topic is not None and not grant.may_publish(will_topic):
            return LoginRefused(LoginRefusal.WILL, "the user may not publish to the topic of the will")
        return grant


def _allows_client_id(patterns: Iterable[str], asked: str, username: str) -> bool:
    for pattern in patterns:
        filled = filled_in(pattern, {"username": escape(username), "client_id": ""})
        if filled is not None and fnmatchcase(asked, filled):
            return True
    return False


def _restrictions(ruled: Sequence[str], claimed: Sequence[str] | None, values: dict[str, str]) -> tuple[TopicPatterns, ...]:
    """Returns the patterns of rule and token. Those that allow everything are left out."""
    return tuple(
        TopicPatterns(patterns, values) for patterns in (ruled, claimed) if patterns is not None and _EVERY_TOPIC not in patterns
    )
