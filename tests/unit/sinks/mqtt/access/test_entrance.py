"""sinks.mqtt.access.entrance"""

import dataclasses

from sinks.mqtt.access.certificates import CertificateUser
from sinks.mqtt.access.entrance import Entrance, entrance_of
from sinks.mqtt.access.settings import AccessRule, LoginSettings
from sinks.mqtt.listeners.settings import ClientCertificate, ListenerSettings
from sinks.mqtt.settings import GatewaySettings

LOOPBACK = ListenerSettings()


def test_nothing_is_asked_on_loopback_while_nothing_is_configured() -> None:
    assert entrance_of(LOOPBACK, GatewaySettings()) == Entrance(is_anonymous_allowed=True, asks_nothing=True)
    assert entrance_of(ListenerSettings(host="0.0.0.0"), GatewaySettings()) == Entrance()


def test_rules_logins_and_certificates_are_asked_for() -> None:
    assert entrance_of(LOOPBACK, GatewaySettings(rules=(AccessRule(),))) == Entrance(is_anonymous_allowed=True)
    login = GatewaySettings(login=LoginSettings(password_file="users"))
    assert entrance_of(LOOPBACK, login) == Entrance()
    assert entrance_of(dataclasses.replace(LOOPBACK, anonymous=True), login) == Entrance(is_anonymous_allowed=True)
    asking = ListenerSettings(client_certificate=ClientCertificate.OPTIONAL, certificate_user=CertificateUser.SAN)
    expected = Entrance(is_anonymous_allowed=True, certificate_user=CertificateUser.SAN)
    assert entrance_of(asking, GatewaySettings()) == expected
