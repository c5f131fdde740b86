"""JSON Web Tokens, and certificates of clients in a real TLS handshake."""

import base64
import json
import random
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from sinks.mqtt.access.certificates import CertificateUser, user_of_certificate
from sinks.mqtt.access.grant import User
from sinks.mqtt.access.token_keys import TokenKey
from sinks.mqtt.access.tokens import Tokens, looks_like_token
from sinks.mqtt.access.usernames import is_username
from sinks.mqtt.listeners.tls import tls_context
from sinks.mqtt.settings import ClientCertificate, ListenerSettings, LoginSettings
from trials.fuzz.mutations import mutated, pieces
from trials.fuzz.target import Target

_NOW_S: Final = 1_800_000_000
_NAMES: Final = ("ada", "a/b", "", "ü", "\x00", "a\nb", "+", "#", "x" * 64, "\u202eada", "..", "ada ")
_CLAIMS: Final = ("sub", "exp", "nbf", "iat", "aud", "iss", "client_id", "publish", "subscribe", "jti")
_VALUES: Final = (None, True, -1, 0, 1e300, _NOW_S + 60, "ada", "", [], ["a/#"], [1], {}, {"a": []}, 10**30, "9" * 40)


class JsonWebTokens(Target):
    """A token that was changed lets nobody in, and a signed one nobody whose name is no user name."""

    name = "JWT"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._key = ec.generate_private_key(ec.SECP256R1())
        keys = (TokenKey(self._key.public_key()),)
        self._tokens = Tokens(LoginSettings(), lambda: keys, clock_s=lambda: _NOW_S)

    def feed(self, dice: random.Random) -> bool:
        claims = {"sub": dice.choice(_NAMES), "exp": 4_000_000_000}
        claims |= {name: dice.choice(_VALUES) for name in dice.choices(_CLAIMS, k=dice.randrange(3))}
        token = jwt.api_jws.encode(json.dumps(claims).encode(), self._key, algorithm="ES256").encode()
        if dice.random() < 0.5:
            judged = self._tokens.user_of(token, dice.choice((None, "", "ada")))
            assert not isinstance(judged, User) or is_username(judged.name)
            return isinstance(judged, User)
        changed = mutated(dice, token, (base64.urlsafe_b64encode(b'{"alg":"none"}'),))
        judged = self._tokens.user_of(changed, None) if looks_like_token(changed) else None
        assert not isinstance(judged, User) or _same_token(changed, token), changed
        return False


def _same_token(left: bytes, right: bytes) -> bool:
    """Base64 has several texts for the same bytes."""
    return [base64.urlsafe_b64decode(part + b"==") for part in left.split(b".")] == [
        base64.urlsafe_b64decode(part + b"==") for part in right.split(b".")
    ]


class Certificates(Target):
    """A handshake with the gateway's TLS in memory: its certificate names anything, or its bytes were changed on the way."""

    name = "certificates, TLS"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._authority = _name("authority")
        authority = self._signed(self._authority, None, is_authority=True)
        (directory / "ca.pem").write_bytes(authority)
        (directory / "server.pem").write_bytes(self._signed(_name("server"), None) + self._key_pem())
        listener = ListenerSettings(
            tls_certfile=str(directory / "server.pem"),
            client_certificate=ClientCertificate.REQUIRED,
            client_cafile=str(directory / "ca.pem"),
        )
        context = tls_context(listener)
        assert context is not None
        self._server = context

    def feed(self, dice: random.Random) -> bool:
        common_name, other_name = dice.choice(_NAMES), dice.choice(_NAMES)
        path = self.directory / "client.pem"
        path.write_bytes(self._signed(_name(common_name), other_name) + self._key_pem())
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        client.load_cert_chain(path)
        certificate = self._certificate(dice, client, is_changed=dice.random() < 0.5)
        if certificate is None:
            return False
        for source in CertificateUser:
            user = user_of_certificate(certificate, source, None)
            assert not isinstance(user, User) or is_username(user.name)
        return True

    def _certificate(self, dice: random.Random, client: ssl.SSLContext, *, is_changed: bool) -> Any:
        """Returns what the server knows of the client; None = there is no connection."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        from_client = ssl.MemoryBIO()
        server = self._server.wrap_bio(to_server, to_client, server_side=True)
        device = client.wrap_bio(to_client, from_client)
        for _ in range(8):
            states = [_handshake(device)]
            data = from_client.read()
            for piece in pieces(dice, mutated(dice, data) if is_changed and data and dice.random() < 0.5 else data):
                to_server.write(piece)
            states.append(_handshake(server))
            if None in states:
                return None
            if all(states):
                return server.getpeercert()
        return None

    def _signed(self, subject: x509.Name, alternative: str | None, *, is_authority: bool = False) -> bytes:
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._authority)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if alternative is not None and alternative.isascii():
            certificate = certificate.add_extension(x509.SubjectAlternativeName([x509.DNSName(alternative)]), critical=False)
        return certificate.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _key_pem(self) -> bytes:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(common_name: str) -> x509.Name:
    attribute = x509.NameAttribute(NameOID.COMMON_NAME, common_name or "x", _validate=False)
    return x509.Name([attribute] if common_name else [])


def _handshake(side: ssl.SSLObject) -> bool | None:
    """Returns True when the handshake is done; None = it has failed."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    except ssl.SSLError:
        return None
    return True
