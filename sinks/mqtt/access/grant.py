"""The two results of a login: what the device may do, or why it may not connect."""

from enum import StrEnum
from typing import Final

import msgspec

from sinks.mqtt.access.topic_patterns import TopicPatterns
from state.model import ReasonCode


class LoginRefusal(StrEnum):
    """Why a login was refused: a label of the metric, never sent to the device."""

    NO_LOGIN = "no login"
    PASSWORD = "wrong user name or password"  # noqa: S105 - a reason  # nosec B105
    TOKEN = "token"  # noqa: S105 - a reason  # nosec B105
    UNKNOWN_KEY = "unknown key of a token"
    NOT_READ = "users or keys are being read"
    CERTIFICATE = "certificate"
    CLIENT_ID = "client id"
    WILL = "will topic"
    BLOCKED = "too many failures"
    BUSY = "too many passwords wait"


_REASON_CODES: Final = {
    LoginRefusal.NO_LOGIN: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    LoginRefusal.PASSWORD: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    LoginRefusal.TOKEN: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    LoginRefusal.UNKNOWN_KEY: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    LoginRefusal.NOT_READ: ReasonCode.SERVER_UNAVAILABLE,
    LoginRefusal.BLOCKED: ReasonCode.SERVER_BUSY,
    LoginRefusal.BUSY: ReasonCode.SERVER_BUSY,
}


class LoginRefused(msgspec.Struct, frozen=True):
    """A refused login.

    Attributes:
        detail: For the log, without secrets.
        code: The reason code for the device; None = by the refusal.
    """

    refusal: LoginRefusal
    detail: str = ""
    code: ReasonCode | None = None

    @property
    def reason_code(self) -> ReasonCode:
        return self.code or _REASON_CODES.get(self.refusal, ReasonCode.NOT_AUTHORIZED)


class User(msgspec.Struct, frozen=True):
    """An authenticated user, with the claims of its token.

    Attributes:
        name: Empty = the device is anonymous.
        client_id, publish, subscribe: Everything that the token allows; a rule has to allow it too. None = no such claim.
        valid_ms: Until the token expires; None = there is no token.
    """

    name: str = ""
    client_id: str | None = None
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    valid_ms: int | None = None


ANONYMOUS: Final = User()


class Grant(msgspec.Struct, frozen=True):
    """The permissions of one connection.

    Attributes:
        publish, subscribe: Each of the patterns must cover a topic; empty = everything is allowed.
        hidden: If it covers a topic filter, the client may not subscribe to that, and is not told why; None = nothing is hidden.
        valid_ms: The connection ends after this long; None = it does not.
    """

    username: str = ""
    publish: tuple[TopicPatterns, ...] = ()
    subscribe: tuple[TopicPatterns, ...] = ()
    valid_ms: int | None = None
    hidden: TopicPatterns | None = None

    def may_publish(self, topic: str) -> bool:
        return all(patterns.cover(topic) for patterns in self.publish)

    def may_subscribe(self, topic_filter: str) -> bool:
        return all(patterns.cover(topic_filter) for patterns in self.subscribe)

    def hides(self, topic_filter: str) -> bool:
        return self.hidden is not None and self.hidden.cover(topic_filter)


EVERYTHING: Final = Grant()
