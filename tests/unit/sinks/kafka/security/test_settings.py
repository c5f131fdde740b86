from pathlib import Path
from typing import Any

import pytest
import trustme

from sinks.kafka.security.settings import KafkaSecurity, SaslMechanism, SecurityProtocol

SCRAM: dict[str, Any] = {"security_protocol": SecurityProtocol.SASL_PLAINTEXT, "sasl_username": "ann"}
TOKENS: dict[str, Any] = {"security_protocol": SecurityProtocol.SASL_PLAINTEXT, "sasl_mechanism": SaslMechanism.OAUTHBEARER}
ENDPOINT: dict[str, Any] = TOKENS | {"sasl_token_url": "https://login/token", "sasl_username": "ann", "sasl_password": "p"}


def found(**settings: Any) -> dict[str, str]:
    return dict(KafkaSecurity(**settings).problems())


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("ann")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.issue_cert("bob").private_key_pem.write_to_path(tmp_path / "other.pem")
    (tmp_path / "empty").write_text("")
    return {path.stem: str(path) for path in tmp_path.iterdir()}


@pytest.mark.parametrize("protocol", SecurityProtocol)
def test_options_that_the_protocol_does_not_use_are_not_checked(protocol: SecurityProtocol) -> None:
    problems = found(security_protocol=protocol, ssl_cafile="/missing", sasl_password_file="/missing", sasl_username="ann")
    assert ("ssl_cafile" in problems) == protocol.endswith("SSL")
    assert ("sasl_password_file" in problems) == protocol.startswith("SASL")


def test_certificates_that_fit_are_fine(files: dict[str, str]) -> None:
    tls = {"security_protocol": SecurityProtocol.SSL, "ssl_cafile": files["ca"]}
    assert found(**tls) == {}
    assert found(**tls, ssl_certfile=files["both"]) == {}
    assert found(**tls, ssl_certfile=files["cert"], ssl_keyfile=files["key"]) == {}


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({"ssl_cafile": "nothing"}, "ssl_cafile", "nothing cannot be used: No such file"),
        ({"ssl_cafile": "empty"}, "ssl_cafile", "give a PEM file of certificates"),
        ({"ssl_keyfile": "key"}, "ssl_keyfile", "set ssl_certfile, too"),
        ({"ssl_certfile": "nothing"}, "ssl_certfile", "nothing cannot be used: No such file"),
        ({"ssl_certfile": "cert"}, "ssl_certfile", "give PEM files of a certificate and its key"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "other"}, "ssl_certfile", "cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_named(files: dict[str, str], given: dict[str, str], key: str, words: str) -> None:
    named = {name: files.get(file, file) for name, file in given.items()}
    [(blamed, message)] = found(security_protocol=SecurityProtocol.SSL, **named).items()
    assert blamed == key
    assert words in message


def test_a_password_comes_from_one_place(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("geheim\nand a remark\n")
    assert found(**SCRAM, sasl_password="p") == {}
    assert found(**SCRAM, sasl_password_file=str(file)) == {}
    assert KafkaSecurity(**SCRAM, sasl_password_file=str(file)).password == "geheim"
    assert "remove sasl_password or" in found(**SCRAM, sasl_password="p", sasl_password_file=str(file))["sasl_password_file"]
    file.write_text("")
    assert "is empty" in found(**SCRAM, sasl_password_file=str(file))["sasl_password"]
    assert "No such file" in found(**SCRAM, sasl_password_file=f"{file}.missing")["sasl_password_file"]


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        (SCRAM | {"sasl_username": ""}, "sasl_username", "is empty"),
        (SCRAM, "sasl_password", "needs it, or sasl_password_file"),
        (SCRAM | {"sasl_password": "p", "sasl_token_url": "https://x"}, "sasl_token_url", "used only with OAUTHBEARER"),
        (TOKENS, "sasl_token_url", "is empty: OAUTHBEARER gets its tokens there, or from sasl_token_file"),
        (ENDPOINT | {"sasl_token_url": "http://login/token"}, "sasl_token_url", "must begin with https://"),
        (ENDPOINT | {"sasl_token_url": "file:///etc/passwd"}, "sasl_token_url", "must begin with https://"),
        (ENDPOINT | {"sasl_username": ""}, "sasl_username", "the client id at the token endpoint"),
        (ENDPOINT | {"sasl_password": ""}, "sasl_password", "is empty"),
        (TOKENS | {"sasl_token_file": "/missing"}, "sasl_token_file", "No such file"),
        (TOKENS | {"sasl_token_file": __file__, "sasl_username": "ann"}, "sasl_username", "not with sasl_token_file"),
    ],
)
def test_a_login_that_cannot_be_is_refused(given: dict[str, Any], key: str, words: str) -> None:
    [(blamed, message)] = found(**given).items()
    assert blamed == key
    assert words in message


def test_an_endpoint_has_tls_or_is_on_this_machine() -> None:
    assert found(**ENDPOINT) == {}
    assert found(**ENDPOINT | {"sasl_token_url": "http://127.0.0.1:8080/token"}) == {}


def test_secrets_are_not_in_the_text_of_the_settings() -> None:
    assert "geheim" not in repr(KafkaSecurity(sasl_password="geheim", ssl_key_password="geheim"))
