"""The two ends of a login: what the device may do from now on, or why it may not connect."""

from enum import StrEnum
from typing import Final

import msgspec

from sinks.mqtt.access.topic_patterns import TopicPatterns
from state.model import ReasonCode


class Refusal(StrEnum):
    """Why a login was refused: a label of the metric, never told to the device."""

    NO_LOGIN = "no login"
    PASSWORD = "wrong user name or password"  # noqa: S105 - a reason  # nosec B105
    TOKEN = "token"  # noqa: S105 - a reason  # nosec B105
    CERTIFICATE = "certificate"
    CLIENT_ID = "client id"
    WILL = "will topic"
    BLOCKED = "too many failures"
    BUSY = "too many passwords wait"


_REASON_CODES: Final = {
    Refusal.NO_LOGIN: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    Refusal.PASSWORD: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    Refusal.TOKEN: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    Refusal.BLOCKED: ReasonCode.SERVER_BUSY,
    Refusal.BUSY: ReasonCode.SERVER_BUSY,
}


class LoginRefused(msgspec.Struct, frozen=True):
    """detail: for the log, without secrets."""

    refusal: Refusal
    detail: str = ""

    @property
    def reason_code(self) -> ReasonCode:
        """Of CONNACK."""
        return _REASON_CODES.get(self.refusal, ReasonCode.NOT_AUTHORIZED)


class User(msgspec.Struct, frozen=True):
    """Who has logged in, and what its token says. name: empty = nobody in particular.

    client_id, publish, subscribe: all that the token allows, as far as a rule allows it, too; None = it does not say.
    valid_ms: how much longer the token holds; None = there is none.
    """

    name: str = ""
    client_id: str | None = None
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    valid_ms: int | None = None


ANONYMOUS: Final = User()


class Grant(msgspec.Struct, frozen=True):
    """What one connection may do. publish, subscribe: each of the patterns must cover a topic; none = everything is allowed.

    valid_ms: the connection ends after this long; None = it does not.
    """

    username: str = ""
    publish: tuple[TopicPatterns, ...] = ()
    subscribe: tuple[TopicPatterns, ...] = ()
    valid_ms: int | None = None

    def may_publish(self, topic: str) -> bool:
        return all(patterns.cover(topic) for patterns in self.publish)

    def may_subscribe(self, topic_filter: str) -> bool:
        return all(patterns.cover(topic_filter) for patterns in self.subscribe)


EVERYTHING: Final = Grant()
