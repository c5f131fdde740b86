"""Finds out whether a changed configuration opens a running gateway by what it no longer says.

An unfinished save, a full disk or a deleted line leaves a valid file with fewer keys. Their defaults may let devices in that were
refused before, so such a file waits for a restart. What a file says explicitly is applied, wider or not.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from sinks.mqtt.settings import LoginSettings
from streaming.config.configuration import RuleSection
from streaming.config.settings import Settings

_TOKEN_CHECKS: Final = ("token_issuer", "token_audience", "token_username_claim")
_PERMISSIONS: Final = ("client_ids", "publish", "subscribe", "not_subscribe")


def lost_access_control(in_force: Settings, new: Settings) -> list[str]:
    """Returns why a running gateway must not apply `new`: each key that is gone, and what devices could do without it."""
    return [*_lost_logins(in_force.gateway.login, new.gateway.login), *_lost_rules(in_force.rules, new.rules)]


def _lost_logins(before: LoginSettings, after: LoginSettings) -> Iterator[str]:
    if before.is_configured and not after.is_configured:
        keys = [f"gateway.login.{key}" for key in ("password_file", "token_keyfile", "token_jwks_url") if getattr(before, key)]
        yield f"{' and '.join(keys)} {'is' if len(keys) == 1 else 'are'} gone: devices could connect without a login"
    if before.has_tokens and after.has_tokens:
        default = LoginSettings()
        for key in _TOKEN_CHECKS:
            if getattr(before, key) != getattr(default, key) == getattr(after, key):
                yield f"gateway.login.{key} is gone: other tokens of the same signer would be accepted"


def _lost_rules(before: Sequence[RuleSection], after: Sequence[RuleSection]) -> Iterator[str]:
    if before and not after:
        yield "every [[rules]] is gone: a user could use all topics"
    known = {rule.users: rule for rule in reversed(before)}  # the first one for the same users holds
    for number, rule in enumerate(after):
        written = rule.model_fields_set
        if "users" not in written and rule.users not in known:
            yield f'rules[{number}].users is missing: the rule would hold for every user; write users = ["*"] if it is meant so'
        if rule.users in known:
            gone = known[rule.users].model_fields_set - written
            for key in (key for key in _PERMISSIONS if key in gone):
                yield f"rules[{number}].{key} is gone: its default allows more; write the key if it is meant so"
