"""The settings of one listener: the keys of [[listeners]]."""

import ipaddress
from dataclasses import dataclass
from enum import StrEnum

from sinks.mqtt.access.certificates import CertificateUser
from sinks.mqtt.limits.settings import check_network
from state.setting import HOUR, Setting


class Transport(StrEnum):
    """The carrier of MQTT packets, inside TLS."""

    TCP = "tcp"
    WEBSOCKET = "websocket"


class ClientCertificate(StrEnum):
    """Selects whether devices authenticate with a TLS client certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One more address of the MQTT listener, besides gateway.host and gateway.port. Files are read again when they change."""

    host: str = Setting("address to listen on; 0.0.0.0 = all of IPv4, :: = all", min_length=1).default("127.0.0.1")
    port: int = Setting("0 = any free one", (0, 65_535)).default(8883)
    transport: Transport = Setting("what carries MQTT: tcp or websocket").default(Transport.TCP)
    anonymous: bool = Setting("let devices in that do not log in").default(False)
    tls_certfile: str = Setting("PEM file of the certificate and its chain; empty = no TLS").default("")
    tls_keyfile: str = Setting("PEM file of its key, without a password; empty = it is in tls_certfile").default("")
    sni_certfiles: tuple[str, ...] = Setting(
        "PEM files, each with a certificate, its chain and its key; a device that asks for a host name of one of them (SNI) gets "
        "that one, any other device gets tls_certfile"
    ).default(())
    client_certificate: ClientCertificate = Setting(
        "do devices show a certificate: none, optional or required; it is their login"
    ).default(ClientCertificate.NONE)
    client_cafile: str = Setting("PEM file of the authorities that may have signed it").default("")
    client_crlfile: str = Setting(
        "PEM file of their revocation lists: a certificate that is on one, or whose authority has no list in force here, is "
        "refused; empty = none is checked"
    ).default("")
    certificate_user: CertificateUser = Setting(
        "which part of it is the user name: cn, or san = the first DNS name or e-mail address"
    ).default(CertificateUser.CN)
    proxies: tuple[str, ...] = Setting(
        "addresses or networks of load balancers that send PROXY protocol v1 or v2; then nobody else may connect here; empty = "
        "no such header is read",
        check=check_network,
    ).default(())
    websocket_path: str = Setting("path of the URL", pattern=r"^/[^?#\s]*$").default("/mqtt")
    websocket_origins: tuple[str, ...] = Setting(
        'web sites whose pages may connect, as browsers say it in `Origin`, for example "https://app.example.com"; "*" = all; '
        "a device that sends no `Origin` is not checked"
    ).default(())

    tcp_keepalive_ms: int | None = Setting(
        "as limits.tcp_keepalive_ms, for devices of this listener; inherit = that one", (0, 2 * HOUR), none="inherit"
    ).default(None)

    def lets_anonymous_in(self, *, is_login_configured: bool) -> bool:
        """Returns True if the configuration says so, or if only this machine connects and nobody could log in.

        A proxy on this machine connects for others.
        """
        return self.anonymous or (not is_login_configured and is_loopback(self.host) and not self.proxies)

    def url(self, host: str, port: int) -> str:
        """Returns the address of a device's client for this listener, such as mqtts://0.0.0.0:8883.

        Args:
            host, port: Where it listens. They differ from the settings if those let any port do.
        """
        is_websocket = self.transport is Transport.WEBSOCKET
        scheme = ("ws" if is_websocket else "mqtt") + ("s" if self.tls_certfile else "")
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{self.websocket_path if is_websocket else ''}"

    @property
    def file_names(self) -> tuple[str, ...]:
        names = (self.tls_certfile, self.tls_keyfile, *self.sni_certfiles, self.client_cafile, self.client_crlfile)
        return tuple(name for name in names if name)


def is_loopback(host: str) -> bool:
    """Returns True if only this machine reaches the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
