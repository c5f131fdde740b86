"""Exchanges, policies and permissions as people write them: what is read, and what is refused with what to change."""

from pathlib import Path

import pytest

from state.dead_letters.policy import Policies
from state.model import Outcome
from streaming.config.errors import ConfigurationError
from streaming.config.explain import render_toml
from streaming.config.resources import conf_file
from streaming.config.settings import load_settings
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.operator.pipeline import SettingsOfClients
from streaming.topics import planned_topics

GOOD = """
[[exchanges]]
name = "retry"
type = "fanout"
bindings = [ { to = "client:delay/{client}" } ]

[[policies]]
name = "lamps"
clients = "lamp-*"
priority = 3
dead_letter_exchange = "retry"
dead_letter_routing_key = "{client}"
dead_letter_reasons = ["rejected", "too-large"]
message_ttl = "1m"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "inflight.toml"


def problems(file: Path, text: str) -> list[str]:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file)
    return [str(problem) for problem in caught.value.problems]


def test_a_policy_reaches_the_session_of_the_clients_it_is_for(file: Path) -> None:
    file.write_text(GOOD, encoding="utf-8")
    settings_of = SettingsOfClients(pipeline_settings(load_settings(file), commands_partitions=1)).of
    policy = settings_of("lamp-1").policy
    assert (policy.name, policy.message_ttl_ms) == ("lamps", 60_000)
    assert policy.dead_letter_reasons == {Outcome.REJECTED, Outcome.TOO_LARGE}
    assert policy.routing_key("lamp-1") == "lamp-1"
    assert settings_of("lamp-1").exchanges.exists("retry")
    assert settings_of("door").policy.name == "default"
    assert settings_of("door").exchanges.exists("retry"), "a message may name an exchange in its headers"


def test_a_policy_in_force_has_the_permissions_of_its_owner(file: Path) -> None:
    owned = '[[permissions]]\nowner = "ann"\nread = ["*"]\nwrite = ["retry"]\n'
    file.write_text(GOOD + 'owner = "ann"\n' + owned, encoding="utf-8")
    policy = SettingsOfClients(pipeline_settings(load_settings(file), commands_partitions=1)).of("lamp-1").policy
    assert (policy.may_write("retry"), policy.may_write("dead-letters")) == (True, False)


def test_what_is_shown_reads_back_as_the_same(file: Path) -> None:
    settings = load_settings(conf_file("policies.toml"))
    file.write_text(render_toml(settings), encoding="utf-8")
    assert load_settings(file) == settings


def test_the_example_in_conf_is_a_delayed_retry_that_its_owner_may_have() -> None:
    settings = load_settings(conf_file("policies.toml"))
    policies = Policies(settings.policies)
    assert [policies.of(client).name for client in ("lamp-1", "delay/lamp-1", "door-7", "x")] == [
        "lamps",
        "delay",
        "doors",
        "default",
    ]
    settings_of = SettingsOfClients(pipeline_settings(settings, commands_partitions=1)).of
    assert settings_of("delay/lamp-1").session_expiry_interval_s == 0xFFFF_FFFF


def test_topics_of_bindings_are_planned() -> None:
    settings = load_settings(conf_file("policies.toml"))
    assert settings.dead_letter_topics == ("lamps.parked", "alarms.undelivered", "doors.undelivered")
    assert {"lamps.parked", "alarms.undelivered"} < {plan.name for plan in planned_topics(settings)}


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ('[[policies]]\nname = "p"\ndead_letter_exchange = "nope"', "policies[0].dead_letter_exchange", "declared nowhere"),
        ('[[policies]]\nname = "p"\nlimit_exchange = ""', "policies[0].limit_exchange", "dead_letter_limit"),
        ('[[policies]]\nname = "p"\n[[policies]]\nname = "p"', "policies[1].name", "earlier policy"),
        ('[[policies]]\nname = "p"\nmessage_ttl = "soon"', "policies[0].message_ttl", "not a duration"),
        ('[[policies]]\nname = "p"\ndead_letter_limit = 0', "policies[0].dead_letter_limit", "greater than or equal to 1"),
        (
            '[[policies]]\nname = "p"\ndead_letter_reasons = ["delivered"]',
            "policies[0].dead_letter_reasons",
            "nothing dies of that",
        ),
        ('[[policies]]\nname = "p"\ndead_letter_reasons = ["tired"]', "policies[0].dead_letter_reasons", "expired"),
        ('[[policies]]\nname = "p"\ndead_letter_exchang = "x"', "policies[0].dead_letter_exchang", "no such key"),
        ('[[policies]]\nclients = "*"', "policies[0].name", "is missing"),
        ('[[policies]]\nname = "p"\nowner = "ann"', "policies[0].owner", "[[permissions]]"),
        (
            '[[policies]]\nname = "p"\nowner = "ann"\n[[permissions]]\nowner = "ann"\nread = ["a*"]\nwrite = ["*"]',
            "policies[0].clients",
            "allowed: a*",
        ),
        (
            '[[policies]]\nname = "p"\nowner = "ann"\n[[permissions]]\nowner = "ann"\nread = ["*"]',
            "policies[0].dead_letter_exchange",
            "nothing is allowed",
        ),
        ('[[exchanges]]\nname = "x"\ntype = "headers"', "exchanges[0].type", "direct, topic, fanout"),
        ('[[exchanges]]\nname = "x"\nbindings = [ { to = "parking" } ]', "exchanges[0].bindings[0].to", "write topic:NAME"),
        (
            '[[exchanges]]\nname = "x"\nbindings = [ { to = "topic:inflight.messages" } ]',
            "exchanges[0].bindings[0].to",
            "is the topic of",
        ),
        ('[[exchanges]]\nname = "x"\n[[exchanges]]\nname = "x"', "exchanges[1].name", "declared twice"),
        ('[[exchanges]]\nname = ""', "exchanges[0].name", "at least 1 character"),
        ('[[permissions]]\nowner = "a"\n[[permissions]]\nowner = "a"', "permissions[1].owner", "listed twice"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_line_and_what_is_allowed(file: Path, text: str, key: str, message: str) -> None:
    found = problems(file, text)
    assert len(found) == 1, found
    assert key in found[0]
    assert message in found[0]
    assert "inflight.toml:" in found[0], "the line is named"


def test_policies_can_be_given_on_the_command_line_as_json() -> None:
    settings = load_settings(overrides=['policies=[{"name": "p", "clients": "a*", "message_ttl": "5s"}]'])
    assert settings.policies[0].message_ttl_ms == 5_000
