"""What a listener means for a login, worked out once and not for each connection."""

from typing import NamedTuple

from sinks.mqtt.access.certificates import CertificateUser
from sinks.mqtt.listeners.settings import ClientCertificate, ListenerSettings
from sinks.mqtt.settings import GatewaySettings


class Entrance(NamedTuple):
    """is_anonymous_allowed: who does not log in is let in. asks_nothing: everybody is, and may do everything."""

    is_anonymous_allowed: bool = False
    asks_nothing: bool = False
    certificate_user: CertificateUser = CertificateUser.CN


def entrance_of(listener: ListenerSettings, settings: GatewaySettings) -> Entrance:
    is_login_configured = settings.login.is_configured
    is_anonymous_allowed = listener.lets_anonymous_in(is_login_configured=is_login_configured)
    return Entrance(
        is_anonymous_allowed,
        asks_nothing=is_anonymous_allowed
        and not is_login_configured
        and not settings.rules
        and listener.client_certificate is ClientCertificate.NONE,
        certificate_user=listener.certificate_user,
    )
