"""Reads the file of a campaign: whom it addresses, what it sends, how quickly, and when it stops."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from state.errors import InflightError
from streaming.config.units import parse_duration_ms

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class InvalidCampaign(InflightError):
    """The file of a campaign, or its name, is wrong."""


class Addressees(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The clients that a campaign addresses: all that one of these names.

    Attributes:
        list: Client ids.
        file: A file with one client id a line, beside that of the campaign.
        pattern: Clients that have a session, by a pattern of shell wildcards.
        profile: Clients that have a session and belong to the profile with this pattern.
        subscribers_of: Clients that subscribe to this topic.
    """

    list: tuple[str, ...] = ()
    file: str = ""
    pattern: str = ""
    profile: str = ""
    subscribers_of: str = ""


class CampaignMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The message that each client gets.

    Attributes:
        payload_file: A file beside that of the campaign.
        expiration: A duration.
    """

    topic: str
    payload: str = ""
    payload_file: str = ""
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    retain: bool = False
    expiration: str = ""


class AbortRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The campaign ends when more than this share of its receipts are failures, from so many receipts on."""

    failed_share: Annotated[float, Meta(ge=0, lt=1)]
    after: Annotated[int, Meta(ge=1)] = 20


class CampaignPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file.

    Attributes:
        id: The name of the campaign, also the beginning of its message ids; default: that of the file.
        rate: Messages a second.
        batch: Messages between two looks at receipts, `pause` and `abort`.
        deadline: A duration after which nothing more is sent.
    """

    clients: Addressees
    message: CampaignMessage
    id: str = ""
    rate: Annotated[float, Meta(gt=0, le=100_000)] = 100.0
    batch: Annotated[int, Meta(ge=1, le=10_000)] = 50
    deadline: str = ""
    abort: AbortRule | None = None


def read_plan(file: Path) -> CampaignPlan:
    """Returns the plan with its payload and lists read in. Raises InvalidCampaign."""
    try:
        plan = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), CampaignPlan)
        clients, message = plan.clients, plan.message
        if clients.file:
            lines = (file.parent / clients.file).read_text(encoding="utf-8").splitlines()
            clients = msgspec.structs.replace(clients, list=(*clients.list, *filter(None, lines)), file="")
        if message.payload_file:
            message = msgspec.structs.replace(message, payload=(file.parent / message.payload_file).read_text("utf-8"))
        _check_duration("deadline", plan.deadline)
        _check_duration("expiration", message.expiration)
    except OSError as error:
        raise InvalidCampaign(f"{error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidCampaign(f"{file}: {error}; docs/guides/campaigns.md has all keys") from None
    plan = msgspec.structs.replace(plan, id=plan.id or file.stem, clients=clients, message=message)
    if not _ID.fullmatch(plan.id):
        raise InvalidCampaign(f"{file}: the id {plan.id!r} may have 1 to 64 letters, digits, '.', '_' and '-'; set id = \"…\"")
    if clients == Addressees():
        raise InvalidCampaign(f"{file}: [clients] names nobody: give list, file, pattern, profile or subscribers_of")
    return plan


def _check_duration(key: str, text: str) -> None:
    try:
        parse_duration_ms(text or 0)
    except ValueError as error:
        raise ValueError(f"{key} = {text!r} is {error}") from None
