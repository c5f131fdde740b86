"""Where a gateway listens, and how. Plain values, as sinks/mqtt/settings.py."""

import ipaddress
from dataclasses import dataclass
from enum import StrEnum

from sinks.mqtt.access.users.certificates import CertificateUser


class Transport(StrEnum):
    """What is around the MQTT packets, inside of TLS."""

    TCP = "tcp"
    WEBSOCKET = "websocket"


class ClientCertificate(StrEnum):
    """Whether a device shows a certificate when it connects with TLS."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One address. Paths are of PEM files that are read again when they change."""

    host: str = "127.0.0.1"
    port: int = 8883  # 0 = any free one
    transport: Transport = Transport.TCP
    anonymous: bool = False
    tls_certfile: str = ""  # with the chain behind it; empty = no TLS
    tls_keyfile: str = ""  # empty = the key is in tls_certfile
    client_certificate: ClientCertificate = ClientCertificate.NONE
    client_cafile: str = ""  # who may have signed them
    certificate_user: CertificateUser = CertificateUser.CN
    proxies: tuple[str, ...] = ()
    """Addresses or networks of load balancers; from them every connection begins with a PROXY protocol v2 header, and from others
    none is taken. Empty = no such header."""
    websocket_path: str = "/mqtt"
    websocket_origins: tuple[str, ...] = ()
    """Of which web sites the pages may connect, as browsers say it in `Origin`; "*" = of all."""

    def lets_anonymous_in(self, *, is_login_configured: bool) -> bool:
        """Who does not log in: if the configuration says so, or where only this machine connects and nobody could log in.

        A proxy on this machine connects for others.
        """
        return self.anonymous or (not is_login_configured and is_loopback(self.host) and not self.proxies)

    @property
    def file_names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.tls_certfile, self.tls_keyfile, self.client_cafile) if name)


def is_loopback(host: str) -> bool:
    """Only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
