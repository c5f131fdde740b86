"""The file of a campaign, and whom it addresses."""

from pathlib import Path

import pytest

from inflight.campaign.addresses import addressed
from inflight.campaign.plan import Addressees, InvalidCampaign, read_plan
from streaming.config.settings import Settings

WHOLE = """
rate = 20
deadline = "2h"
[clients]
list = ["a"]
file = "clients.txt"
[message]
topic = "cmd/update"
payload_file = "payload.json"
expiration = "1h"
[abort]
failed_share = 0.1
"""
KNOWN = ("lamp-1", "lamp-2", "door-1")


def written(directory: Path, text: str) -> Path:
    file = directory / "firmware-7.toml"
    file.write_text(text)
    (directory / "clients.txt").write_text("b\n\nc\n")
    (directory / "payload.json").write_text("{}")
    return file


def test_the_file_names_the_campaign_and_has_all_of_it(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, WHOLE))
    assert (plan.id, plan.clients.list, plan.message.payload, plan.batch) == ("firmware-7", ("a", "b", "c"), "{}", 50)
    assert plan.abort is not None
    assert plan.abort.after == 20


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[clients]\nlist = []\n[message]\ntopic = 'a'", "names nobody"),
        ("[clients]\nlist = ['a']\n[message]\ntopic = 'a'\nqos = 3", "qos"),
        ("[clients]\nlist = ['a']\n[message]\ntopic = 'a'\ncolour = 3", "colour"),
        ("id = 'a/b'\n[clients]\nlist = ['a']\n[message]\ntopic = 'a'", "the id 'a/b'"),
        ("deadline = 'soon'\n[clients]\nlist = ['a']\n[message]\ntopic = 'a'", "soon"),
        ("[clients]\nfile = 'missing'\n[message]\ntopic = 'a'", "missing cannot be read"),
        ("clients", "firmware-7.toml"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidCampaign, match=complaint):
        read_plan(written(tmp_path, text))


def found(plan: Addressees, settings: Settings | None = None) -> list[str]:
    return addressed(
        plan, settings or Settings(), clients_with_session=lambda: KNOWN, subscribers=lambda topic: ["z", topic, "z"]
    )


def test_the_listed_clients_come_first_and_each_once() -> None:
    assert found(Addressees(list=("z", "lamp-2"), pattern="lamp-*")) == ["z", "lamp-2", "lamp-1"]


def test_a_profile_addresses_the_clients_that_have_its_settings() -> None:
    settings = Settings(profiles=[{"clients": "lamp-1"}, {"clients": "lamp-*"}])  # type: ignore[arg-type]
    assert found(Addressees(profile="lamp-*"), settings) == ["lamp-2"]
    with pytest.raises(InvalidCampaign, match="has the profiles lamp-1, lamp-"):
        found(Addressees(profile="door-*"), settings)


def test_subscribers_of_a_topic_need_routing() -> None:
    with pytest.raises(InvalidCampaign, match="nobody knows the subscribers"):
        found(Addressees(subscribers_of="t"), Settings(routing={"enabled": False}))  # type: ignore[arg-type]
    routing = Settings(routing={"enabled": True})  # type: ignore[arg-type]
    assert found(Addressees(subscribers_of="t"), routing) == ["t", "z"]
    with pytest.raises(InvalidCampaign, match="a topic name"):
        found(Addressees(subscribers_of="t/#"), routing)


def test_a_pattern_that_nobody_matches_is_refused() -> None:
    with pytest.raises(InvalidCampaign, match="addresses nobody"):
        found(Addressees(pattern="nobody-*"))
