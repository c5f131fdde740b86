"""Makes the TLS context of a listener."""

import ssl
from typing import Final

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.listeners.settings import ClientCertificate, ListenerSettings

_VERIFY: Final = {
    ClientCertificate.NONE: ssl.CERT_NONE,
    ClientCertificate.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientCertificate.REQUIRED: ssl.CERT_REQUIRED,
}


def tls_context(listener: ListenerSettings) -> ssl.SSLContext | None:
    """Accepts TLS 1.2 or newer, with the system's ciphers. Returns None if the listener has no TLS. Raises UnusableFile."""
    if not listener.tls_certfile:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # Without this password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(listener.tls_certfile, listener.tls_keyfile or None, password="")  # nosec B106
        context.verify_mode = _VERIFY[listener.client_certificate]
        if listener.client_cafile:
            context.load_verify_locations(listener.client_cafile)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UnusableFile(
            f"certificate, key or authorities of the listener {listener.host}:{listener.port} cannot be used: {error}. PEM files "
            f"are needed, the key without a password and of the same certificate: {', '.join(listener.file_names)}."
        ) from error
    return context
