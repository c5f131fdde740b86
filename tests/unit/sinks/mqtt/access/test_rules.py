import pytest

from sinks.mqtt.access.grant import ANONYMOUS, EVERYTHING, Grant, LoginRefusal, LoginRefused, User
from sinks.mqtt.access.rules import Rules
from sinks.mqtt.settings import AccessRule

ADA = User("ada")


def grant(rules: Rules, user: User, client_id: str, *, assigned: str = "", will_topic: str | None = None) -> Grant:
    judged = rules.apply(user, asked_client_id=client_id, client_id=assigned or client_id, will_topic=will_topic)
    assert isinstance(judged, Grant), judged
    return judged


def refusal(rules: Rules, user: User, client_id: str, *, will_topic: str | None = None) -> LoginRefusal:
    judged = rules.apply(user, asked_client_id=client_id, client_id=client_id, will_topic=will_topic)
    assert isinstance(judged, LoginRefused), judged
    return judged.refusal


DEFAULT = Rules(())


@pytest.mark.parametrize("client_id", ["ada", "ada/1", "ada/1/2", ""])
def test_by_default_a_user_may_use_client_ids_of_its_own(client_id: str) -> None:
    allowed = grant(DEFAULT, ADA, client_id, assigned="inflight-1")
    assert allowed.username == "ada"
    assert allowed.may_publish("anything")
    assert allowed.may_subscribe("#")


@pytest.mark.parametrize("client_id", ["eve", "adam", "ada-1", "eve/ada", "inflight-1"])
def test_by_default_a_user_may_not_use_client_ids_of_others(client_id: str) -> None:
    assert refusal(DEFAULT, ADA, client_id) is LoginRefusal.CLIENT_ID


def test_a_wildcard_in_a_user_name_is_an_ordinary_character() -> None:
    for name in ("*", "?da", "[a]da"):
        assert refusal(DEFAULT, User(name), "ada") is LoginRefusal.CLIENT_ID
        assert grant(DEFAULT, User(name), f"{name}/1")


def test_the_default_rules_let_anonymous_devices_do_everything() -> None:
    assert grant(DEFAULT, ANONYMOUS, "any") is EVERYTHING


RULES = Rules(
    (
        AccessRule(users=("backend-*",), client_ids=("*",), subscribe=()),
        AccessRule(users=("",), client_ids=("guest-*",), publish=("guests/{client_id}", "users/{username}")),
        AccessRule(users=("a*",), publish=("devices/{username}/#",), subscribe=("devices/{client_id}/+",)),
    )
)


def test_only_the_first_rule_for_the_user_holds() -> None:
    backend = grant(RULES, User("backend-1"), "anything")
    assert (backend.may_publish("devices/x"), backend.may_subscribe("devices/x")) == (True, False)
    ada = grant(RULES, ADA, "ada/7")
    assert (ada.may_publish("devices/ada/up"), ada.may_publish("devices/eve/up")) == (True, False)
    assert (ada.may_subscribe("devices/ada/7/+"), ada.may_subscribe("devices/#")) == (True, False)


def test_a_user_without_a_rule_may_not_connect() -> None:
    assert refusal(RULES, User("eve"), "eve") is LoginRefusal.CLIENT_ID


def test_a_client_id_that_the_rule_does_not_allow_is_invalid() -> None:
    """MQTT 5, 3.2.2.2: valid, but not allowed by the server. Other refusals of a rule say that the device is not authorized."""

    def code(rules: Rules, user: User, client_id: str) -> int:
        judged = rules.apply(user, asked_client_id=client_id, client_id=client_id, will_topic=None)
        assert isinstance(judged, LoginRefused)
        return judged.reason_code

    assert code(Rules((AccessRule(users=("",), client_ids=("[A-Z]*",)),)), ANONYMOUS, "bad/id") == 0x85
    assert code(RULES, User("eve"), "eve") == 0x87, "there is no rule for this user"
    assert code(DEFAULT, User("ada", client_id="ada/1"), "ada/2") == 0x87, "the token is of another client"


def test_a_filter_is_hidden_only_with_everything_that_it_matches() -> None:
    rules = Rules((AccessRule(users=("",), client_ids=("*",), not_subscribe=("secret/#", "of/{client_id}")),))
    device = grant(rules, ANONYMOUS, "7")
    hidden = ["secret", "secret/a", "secret/+/b", "of/7"]
    assert [asked for asked in (*hidden, "#", "+/a", "of/+", "of/8") if device.hides(asked)] == hidden
    assert device.may_publish("secret/a")


def test_anonymous_devices_have_rules_too() -> None:
    guest = grant(RULES, ANONYMOUS, "guest-1")
    assert (guest.may_publish("guests/guest-1"), guest.may_publish("guests/guest-2"), guest.may_publish("users/")) == (
        True,
        False,
        False,
    )
    assert refusal(RULES, ANONYMOUS, "ada") is LoginRefusal.CLIENT_ID


def test_the_default_rule_allows_anonymous_devices_assigned_client_ids() -> None:
    rules = Rules((AccessRule(),))
    assert refusal(rules, ANONYMOUS, "/x") is LoginRefusal.CLIENT_ID
    assert grant(rules, ANONYMOUS, "", assigned="inflight-1")


def test_a_will_is_a_publication() -> None:
    assert refusal(RULES, ADA, "ada", will_topic="devices/eve/gone") is LoginRefusal.WILL
    assert grant(RULES, ADA, "ada", will_topic="devices/ada/gone")


def test_a_token_narrows_a_rule_and_never_widens_it() -> None:
    narrow = User("ada", client_id="ada/1", publish=("devices/ada/up", "devices/eve/up"), subscribe=("#",), valid_ms=5)
    allowed = grant(RULES, narrow, "ada/1")
    assert allowed.valid_ms == 5
    assert [allowed.may_publish(f"devices/{topic}") for topic in ("ada/up", "ada/other", "eve/up")] == [True, False, False]
    assert (allowed.may_subscribe("devices/ada/1/+"), allowed.may_subscribe("#")) == (True, False)
    assert refusal(RULES, narrow, "ada/2") is LoginRefusal.CLIENT_ID
    assert refusal(RULES, narrow, "") is LoginRefusal.CLIENT_ID
    assert refusal(RULES, User("ada", client_id="eve"), "eve") is LoginRefusal.CLIENT_ID


def test_a_token_that_allows_no_topics_allows_none() -> None:
    silent = grant(DEFAULT, User("ada", publish=(), subscribe=()), "ada")
    assert (silent.may_publish("t"), silent.may_subscribe("t")) == (False, False)
