import ssl
from pathlib import Path

import pytest
import trustme

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.listeners.settings import ClientCertificate, ListenerSettings
from sinks.mqtt.listeners.tls import tls_context


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    authority = trustme.CA()
    mine, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    parts = {
        "ca": authority.cert_pem.bytes(),
        "cert": mine.cert_chain_pems[0].bytes(),
        "key": mine.private_key_pem.bytes(),
        "both": mine.private_key_and_cert_chain_pem.bytes(),
        "other": other.private_key_pem.bytes(),
        "broken": b"x",
    }
    for name, content in parts.items():
        (tmp_path / name).write_bytes(content)
    return {name: str(tmp_path / name) for name in [*parts, "missing"]}


def test_without_a_certificate_there_is_no_tls() -> None:
    assert tls_context(ListenerSettings()) is None


def test_old_versions_are_not_spoken(files: dict[str, str]) -> None:
    context = tls_context(ListenerSettings(tls_certfile=files["both"]))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE


def test_client_certificates_are_asked_for(files: dict[str, str]) -> None:
    for asked, mode in ((ClientCertificate.REQUIRED, ssl.CERT_REQUIRED), (ClientCertificate.OPTIONAL, ssl.CERT_OPTIONAL)):
        listener = ListenerSettings(
            tls_certfile=files["cert"], tls_keyfile=files["key"], client_certificate=asked, client_cafile=files["ca"]
        )
        context = tls_context(listener)
        assert context is not None
        assert context.verify_mode is mode
        assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("certificate", "key", "authorities"),
    [("missing", "", ""), ("broken", "", ""), ("cert", "", ""), ("cert", "other", ""), ("both", "", "broken")],
)
def test_files_that_cannot_be_used_are_named(files: dict[str, str], certificate: str, key: str, authorities: str) -> None:
    listener = ListenerSettings(
        tls_certfile=files[certificate], tls_keyfile=files.get(key, ""), client_cafile=files.get(authorities, "")
    )
    with pytest.raises(UnusableFile) as caught:
        tls_context(listener)
    assert files[certificate] in str(caught.value)


def test_a_key_with_a_password_is_an_error_and_no_question_at_the_terminal(files: dict[str, str], tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(Path(files["key"]).read_bytes(), None)
    locked = tmp_path / "locked"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(UnusableFile):
        tls_context(ListenerSettings(tls_certfile=files["cert"], tls_keyfile=str(locked)))
