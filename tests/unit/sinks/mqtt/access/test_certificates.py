from typing import Any

import pytest

from sinks.mqtt.access.certificates import CertificateUser, user_of_certificate
from sinks.mqtt.access.grant import LoginRefused, User

CERTIFICATE: dict[str, Any] = {
    "subject": ((("organizationName", "us"),), (("commonName", "fleet"),), (("commonName", "ada"),)),
    "subjectAltName": (("IP Address", "192.0.2.1"), ("email", "ada@example.com"), ("DNS", "ada.example.com")),
}


def test_the_most_specific_common_name_is_the_user() -> None:
    assert user_of_certificate(CERTIFICATE, CertificateUser.CN, None) == User("ada")


def test_the_first_alternative_name_can_be_the_user() -> None:
    assert user_of_certificate(CERTIFICATE, CertificateUser.SAN, None) == User("ada@example.com")


def test_a_user_name_in_connect_has_to_be_the_same() -> None:
    assert user_of_certificate(CERTIFICATE, CertificateUser.CN, "ada") == User("ada")
    assert isinstance(user_of_certificate(CERTIFICATE, CertificateUser.CN, "eve"), LoginRefused)


@pytest.mark.parametrize("certificate", [{}, {"subject": ((("commonName", "a/b"),),), "subjectAltName": (("DNS", "+"),)}])
@pytest.mark.parametrize("source", list(CertificateUser))
def test_a_certificate_without_a_user_name_is_refused(certificate: dict[str, Any], source: CertificateUser) -> None:
    assert isinstance(user_of_certificate(certificate, source, None), LoginRefused)
