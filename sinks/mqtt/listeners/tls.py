"""Makes the TLS context of a listener."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography import x509

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.settings import ClientCertificate, ListenerSettings

_VERIFY: Final = {
    ClientCertificate.NONE: ssl.CERT_NONE,
    ClientCertificate.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientCertificate.REQUIRED: ssl.CERT_REQUIRED,
}
_ANY_LABEL: Final = "*"


def tls_context(listener: ListenerSettings) -> ssl.SSLContext | None:
    """Accepts TLS 1.2 or newer, with the system's ciphers. Returns None if the listener has no TLS. Raises UnusableFile."""
    if not listener.tls_certfile:
        return None
    try:
        context = _context(listener, listener.tls_certfile, listener.tls_keyfile)
        if listener.sni_certfiles:
            contexts = {name: _context(listener, file) for file in listener.sni_certfiles for name in _host_names(file)}
            context.sni_callback = lambda tls, name, _: _select(contexts, tls, name)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UnusableFile(
            f"a certificate, key, authority or revocation list of the listener {listener.host}:{listener.port} cannot be used: "
            f"{error}. PEM files are needed, a key without a password and of the same certificate: "
            f"{', '.join(listener.file_names)}."
        ) from error
    return context


def _context(listener: ListenerSettings, certfile: str, keyfile: str = "") -> ssl.SSLContext:
    """All contexts of a listener verify alike: after the choice of another one OpenSSL takes some of it from the first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Without this password OpenSSL would ask for one at the terminal.
    context.load_cert_chain(certfile, keyfile or None, password="")  # nosec B106
    context.verify_mode = _VERIFY[listener.client_certificate]
    if listener.client_cafile:
        context.load_verify_locations(listener.client_cafile)
    if listener.client_crlfile:
        x509.load_pem_x509_crl(Path(listener.client_crlfile).read_bytes())  # OpenSSL would take a file without any list
        context.load_verify_locations(listener.client_crlfile)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    return context


def _host_names(certfile: str) -> tuple[str, ...]:
    """Returns the DNS names of the first certificate. Raises ValueError if there is none."""
    extensions = x509.load_pem_x509_certificate(Path(certfile).read_bytes()).extensions
    names = [
        name.lower()
        for extension in extensions
        if isinstance(extension.value, x509.SubjectAlternativeName)
        for name in extension.value.get_values_for_type(x509.DNSName)
    ]
    if not names:
        raise ValueError(f"the certificate in {certfile} names no host (subjectAltName)")
    return tuple(names)


def _select(contexts: Mapping[str, ssl.SSLContext], tls: ssl.SSLObject, name: str | None) -> None:
    """Sets the context of the host name, or of the wildcard for its first label (RFC 6125, 6.4.3)."""
    wanted = (name or "").lower()
    context = contexts.get(wanted) or contexts.get(f"{_ANY_LABEL}.{wanted.partition('.')[2]}")
    if context is not None:
        tls.context = context
