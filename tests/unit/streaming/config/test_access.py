import json
import re

import pytest

from sinks.mqtt.access.certificates import CertificateUser
from sinks.mqtt.settings import AccessRule, ClientCertificate, ListenerSettings, Transport
from streaming.config.errors import ConfigurationError
from streaming.config.resources import conf_file
from streaming.config.section import section_of, setting_of
from streaming.config.settings import gateway_settings, load_settings

TLS = {"host": "0.0.0.0", "tls_certfile": "server.pem"}


def complaints(*overrides: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(overrides=overrides)
    return [str(problem) for problem in caught.value.problems]


def listeners(*tables: dict[str, object]) -> str:
    return f"listeners={json.dumps(tables)}"


def test_by_default_only_this_machine_connects() -> None:
    settings = gateway_settings(load_settings())
    assert [listener.host for listener in settings.all_listeners] == ["127.0.0.1"]
    assert not settings.anonymous


def test_listeners_and_rules_are_the_gateways() -> None:
    table = TLS | {
        "port": 8884,
        "transport": "websocket",
        "client_certificate": "required",
        "client_cafile": "ca.pem",
        "certificate_user": "san",
        "proxies": ["10.0.0.0/8", "::1"],
        "websocket_origins": ["https://app.example.com"],
    }
    rules = [{"users": ["a*"], "client_ids": ["*"], "publish": ["up/{username}/#"], "subscribe": []}]
    settings = gateway_settings(load_settings(overrides=[listeners(table), f"rules={json.dumps(rules)}"]))
    assert settings.listeners == (
        ListenerSettings(
            host="0.0.0.0",
            port=8884,
            tls_certfile="server.pem",
            transport=Transport.WEBSOCKET,
            client_certificate=ClientCertificate.REQUIRED,
            client_cafile="ca.pem",
            certificate_user=CertificateUser.SAN,
            proxies=("10.0.0.0/8", "::1"),
            websocket_origins=("https://app.example.com",),
        ),
    )
    assert settings.rules == (AccessRule(users=("a*",), client_ids=("*",), publish=("up/{username}/#",), subscribe=()),)


@pytest.mark.parametrize(
    "overrides",
    [["gateway.host=0.0.0.0"], ["gateway.host=gateway.example.com"], [listeners({"host": "0.0.0.0"})], [listeners(TLS)]],
)
def test_where_others_connect_there_must_be_a_way_to_log_in(overrides: list[str]) -> None:
    [problem] = complaints(*overrides)
    assert "nobody could log in there" in problem
    for way in ("gateway.login.password_file=users", "gateway.login.token_keyfile=key.pem"):
        load_settings(overrides=[*overrides, way])


def test_anonymous_access_must_be_configured() -> None:
    load_settings(overrides=["gateway.host=0.0.0.0", "gateway.anonymous=true"])
    load_settings(overrides=[listeners(TLS | {"anonymous": True})])
    load_settings(overrides=[listeners(TLS | {"client_certificate": "required", "client_cafile": "ca.pem"})])


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (listeners(TLS | {"client_certificate": "required"}), "client_cafile"),
        (listeners({"tls_keyfile": "server.key"}), "is the key of no certificate"),
        (listeners(TLS | {"client_crlfile": "crl.pem"}), "revokes certificates that nobody shows"),
        (listeners({"sni_certfiles": ["b.pem"]}), "needs tls_certfile"),
        (listeners({"proxies": ["everybody"]}), "write an address or a network"),
        (listeners({"websocket_path": "mqtt"}), "websocket_path"),
        ('rules=[{"publish": ["a#"]}]', "this is no topic filter"),
        ('rules=[{"users": []}]', "users"),
        ('gateway.login.token_algorithms=["HS256"]', "these are possible: RS256"),
        ('gateway.login.token_algorithms=["none"]', "these are possible: RS256"),
        ("gateway.login.token_jwks_url=http://example.com/keys", "write an https:// URL"),
        ("gateway.login.token_jwks_cafile=ca.pem", "set token_jwks_url"),
        ("gateway.port=-1", "there must be [[listeners]]"),
    ],
)
def test_what_cannot_be_meant_is_refused(override: str, complaint: str) -> None:
    assert complaint in "".join(complaints(override))


@pytest.mark.parametrize("override", ['gateway.credentials={"ann": "hunter2"}', "gateway.credentials.ann=hunter2"])
def test_the_credentials_of_old_configurations_are_explained(override: str) -> None:
    [problem] = complaints(override)
    assert "`inflight users add NAME`" in problem
    assert "gateway.login.password_file" in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize("settings_class", [ListenerSettings, AccessRule])
def test_the_file_in_conf_explains_every_key_of_a_listener_and_a_rule(settings_class: type) -> None:
    text = conf_file("inflight.toml").read_text(encoding="utf-8")
    unfolded = re.sub(r"\n# # ", " ", text)
    for name, field in section_of(settings_class).model_fields.items():
        assert f"\n# {name} = " in text
        assert setting_of(field).meaning in unfolded
