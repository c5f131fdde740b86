"""Certificates for tests, made when they are needed: an authority, and files of what it signs."""

from pathlib import Path

import trustme

from sinks.mqtt.settings import ClientCertificate, ListenerSettings, Transport
from tests.unit.sinks.mqtt.listeners.test_tls import revocation_list


class Authority:
    """directory: where the files go."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._authority = trustme.CA()
        self.file = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def server(self, name: str = "server.pem", *hosts: str) -> Path:
        """Returns certificate and key, for this machine or for these hosts; a second call renews it."""
        path = self.directory / name
        new = path.with_suffix(".new")
        issued = self._authority.issue_cert(*(hosts or ("localhost", "127.0.0.1")), common_name=hosts[0] if hosts else None)
        issued.private_key_and_cert_chain_pem.write_to_path(new)
        new.replace(path)
        return path

    def client(self, username: str) -> Path:
        path = self.directory / f"{username}.pem"
        issued = self._authority.issue_cert(f"{username}@example.com", common_name=username)
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def revocation_list(self, *revoked: Path) -> str:
        """Returns a file with the list of the authority."""
        return revocation_list(self.directory / "crl.pem", self._authority, *revoked)

    def listener(self, *, transport: Transport = Transport.TCP, asking: bool = False, anonymous: bool = True) -> ListenerSettings:
        """Returns settings of a TLS listener on a free port of loopback. asking: whether devices need a client certificate."""
        return ListenerSettings(
            port=0,
            transport=transport,
            anonymous=anonymous,
            tls_certfile=str(self.server()),
            client_certificate=ClientCertificate.REQUIRED if asking else ClientCertificate.NONE,
            client_cafile=str(self.file) if asking else "",
        )
