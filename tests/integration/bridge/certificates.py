"""An authority of a test's own, and certificates that it signs; made by openssl, good for two days."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_CONF = """\
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = {name}
[extensions]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
{extensions}
"""
_AUTHORITY = "basicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign, cRLSign"


@dataclass(frozen=True)
class Certificate:
    """PEM files."""

    cert: str
    key: str


class Authority:
    """Self-signed, as of somebody who runs a broker of his own. Readable by everybody: Mosquitto gives its rights up."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        self.own = self._make(name, _AUTHORITY, [])

    def sign(self, name: str, *, host: str = "") -> Certificate:
        """host: "" = of a client. It must be an IP address."""
        usage = f"extendedKeyUsage = serverAuth\nsubjectAltName = IP:{host}" if host else "extendedKeyUsage = clientAuth"
        extensions = f"basicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature\n{usage}"
        return self._make(name, extensions, ["-CA", self.own.cert, "-CAkey", self.own.key])

    def _make(self, name: str, extensions: str, signer: list[str]) -> Certificate:
        conf, cert, key = (self._directory / f"{name}.{suffix}" for suffix in ("conf", "pem", "key"))
        conf.write_text(_CONF.format(name=name, extensions=extensions), encoding="utf-8")
        command = ["openssl", "req", "-x509", "-new", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config", str(conf)]
        command += [*signer, "-out", str(cert), "-keyout", str(key)]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        key.chmod(0o644)
        return Certificate(str(cert), str(key))
