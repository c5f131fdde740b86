"""Reads the user from a client certificate, whose signature and validity TLS has verified."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from sinks.mqtt.access.grant import LoginRefusal, LoginRefused, User
from sinks.mqtt.access.usernames import is_username

Certificate: TypeAlias = Mapping[str, Any]
"""As `ssl.SSLObject.getpeercert` returns it."""


class CertificateUser(StrEnum):
    """The part of a certificate that is the user name."""

    CN = "cn"  # the common name of the subject
    SAN = "san"  # the first DNS name or e-mail address of the subject's alternative names


_ALTERNATIVE_NAMES = ("DNS", "email")


def user_of_certificate(certificate: Certificate, source: CertificateUser, username: str | None) -> User | LoginRefused:
    """Returns the user that a certificate names, or why the login is refused.

    Args:
        source: The part of the certificate that names the user.
        username: The user name of CONNECT. If there is one, it has to be the certificate's.
    """
    if source is CertificateUser.CN:
        # The last one is the most specific.
        names = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"][-1:]
    else:
        names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _ALTERNATIVE_NAMES][:1]
    if not names or not is_username(names[0]):
        return LoginRefused(LoginRefusal.CERTIFICATE, f"its {source.upper()} is missing or no user name")
    if username and username != names[0]:
        return LoginRefused(LoginRefusal.CERTIFICATE, "CONNECT has another user name")
    return User(names[0])
