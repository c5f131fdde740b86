import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.listeners.tls import tls_context
from sinks.mqtt.settings import ClientCertificate, ListenerSettings


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
        PrivateFormat,
    )

    key = load_pem_private_key(Path(files["key"]).read_bytes(), None)
    locked = tmp_path / "locked"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(UnusableFile):
        tls_context(ListenerSettings(tls_certfile=files["cert"], tls_keyfile=str(locked)))


def shaken(listener: ListenerSettings, device: ssl.SSLContext, host: str = "localhost") -> str:
    """Returns the common name of the certificate that the listener shows. Raises ssl.SSLError if a side refuses the other."""
    context = tls_context(listener)
    assert context is not None
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(theirs, ours, server_side=True)
    client = device.wrap_bio(ours, theirs, server_hostname=host)
    done: set[ssl.SSLObject] = set()
    while len(done) < len((server, client)):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            done.add(side)
    shown = x509.load_der_x509_certificate(client.getpeercert(binary_form=True) or b"")
    return str(shown.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def pem(path: Path, authority: trustme.CA, *hosts: str) -> str:
    authority.issue_cert(*hosts, common_name=hosts[0]).private_key_and_cert_chain_pem.write_to_path(path)
    return str(path)


def test_the_certificate_of_the_host_name_is_shown(tmp_path: Path) -> None:
    authority = trustme.CA()
    listener = ListenerSettings(
        tls_certfile=pem(tmp_path / "first", authority, "first.example.com", "other.example.net", "a.b.fleet.example.com"),
        sni_certfiles=(
            pem(tmp_path / "second", authority, "second.example.com"),
            pem(tmp_path / "wild", authority, "*.fleet.example.com"),
        ),
    )
    device = ssl.create_default_context()
    authority.configure_trust(device)
    for host, shown in (
        ("first.example.com", "first.example.com"),
        ("SECOND.example.com", "second.example.com"),
        ("a.fleet.example.com", "*.fleet.example.com"),
        ("other.example.net", "first.example.com"),
        ("a.b.fleet.example.com", "first.example.com"),
    ):
        assert shaken(listener, device, host) == shown


def test_a_further_certificate_without_a_host_name_is_named(files: dict[str, str], tmp_path: Path) -> None:
    nameless = pem(tmp_path / "nameless", trustme.CA(), "ada@example.com")
    with pytest.raises(UnusableFile, match="nameless names no host"):
        tls_context(ListenerSettings(tls_certfile=files["both"], sni_certfiles=(nameless,)))


def revocation_list(path: Path, authority: trustme.CA, *revoked: Path, days: int = 1) -> str:
    """Writes a list of the authority. days: until the next one is due; negative = it is overdue."""
    key = load_pem_private_key(authority.private_key_pem.bytes(), None)
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder(
        issuer_name=x509.load_pem_x509_certificate(authority.cert_pem.bytes()).subject,
        last_update=now - timedelta(days=9),
        next_update=now + timedelta(days=days),
    )
    for file in revoked:
        serial = x509.load_pem_x509_certificate(file.read_bytes()).serial_number
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - timedelta(days=1)).build()
        )
    path.write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM))  # type: ignore[arg-type]
    return str(path)


def test_a_revoked_certificate_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    server, devices = trustme.CA(), trustme.CA()
    (tmp_path / "devices").write_bytes(devices.cert_pem.bytes())
    good, bad = (Path(pem(tmp_path / name, devices, f"{name}.example.com")) for name in ("good", "bad"))
    listener = ListenerSettings(
        tls_certfile=pem(tmp_path / "server", server, "localhost"),
        client_certificate=ClientCertificate.REQUIRED,
        client_cafile=str(tmp_path / "devices"),
        client_crlfile=revocation_list(tmp_path / "crl", devices, bad),
    )

    def device(certificate: Path) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.load_cert_chain(certificate)
        server.configure_trust(context)
        return context

    assert shaken(listener, device(good)) == "localhost"
    with pytest.raises(ssl.SSLError, match="revoked"):
        shaken(listener, device(bad))
    revocation_list(tmp_path / "crl", devices, days=-1)
    with pytest.raises(ssl.SSLError, match="CRL has expired"):
        shaken(listener, device(good))


def test_a_revocation_list_that_is_none_is_named(files: dict[str, str]) -> None:
    for crl in ("missing", "broken", "ca"):
        listener = ListenerSettings(
            tls_certfile=files["both"],
            client_certificate=ClientCertificate.REQUIRED,
            client_cafile=files["ca"],
            client_crlfile=files[crl],
        )
        with pytest.raises(UnusableFile, match="revocation list"):
            tls_context(listener)
