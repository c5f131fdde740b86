"""Finds the clients that a campaign addresses. The list is made once, when the campaign starts."""

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from inflight.campaign.plan import Addressees, InvalidCampaign
from sinks.mqtt_topics import is_topic_name
from state.model import ClientId

if TYPE_CHECKING:
    from streaming.config.settings import Settings


def addressed(
    plan: Addressees,
    settings: "Settings",
    *,
    clients_with_session: Callable[[], Iterable[ClientId]],
    subscribers: Callable[[str], Iterable[ClientId]],
) -> list[ClientId]:
    """Returns the clients, each once: those of the list in its order, then the others by name.

    Raises:
        InvalidCampaign: There is no such profile, no routing, or nobody is addressed.
    """
    found = dict.fromkeys(plan.list)
    others: set[ClientId] = set()
    if plan.pattern or plan.profile:
        known = list(clients_with_session())
        if plan.pattern:
            others.update(fnmatch.filter(known, plan.pattern))
        if plan.profile:
            others.update(_of_profile(plan.profile, settings, known))
    if plan.subscribers_of:
        others.update(_subscribers(plan.subscribers_of, settings, subscribers))
    found |= dict.fromkeys(sorted(others))
    if not found:
        raise InvalidCampaign("[clients] addresses nobody: `inflight presence` shows which clients have a session")
    return list(found)


def read_clients(settings: "Settings") -> list[ClientId]:
    """Returns the clients that have a session, online or not. Raises KafkaUnreachable."""
    from inflight.presence import Presence
    from sinks.kafka.librdkafka import KafkaFailed
    from streaming.config.errors import KafkaUnreachable

    servers, options = settings.kafka.bootstrap_servers, settings.kafka.librdkafka_options()
    try:
        with Presence(servers, topic=settings.topics.presence, kafka_options=options) as presence:
            return list(presence.read())
    except KafkaFailed as error:
        raise KafkaUnreachable.of(servers, error) from error


def read_subscribers(settings: "Settings", topic: str) -> list[ClientId]:
    """Returns the clients that subscribe to a topic; of shared subscriptions all members. Raises KafkaUnreachable."""
    from streaming.history.subscriptions import read_subscriptions, subscribers_of

    table = read_subscriptions(settings, lambda done, total: None)
    return [one.client_id for one in subscribers_of(table, topic)]


def _of_profile(pattern: str, settings: "Settings", known: Iterable[ClientId]) -> Iterable[ClientId]:
    """Returns the clients for which the profile with this pattern is the first that matches."""
    patterns = [of_profile for of_profile, _ in settings.session_profiles]
    if pattern not in patterns:
        raise InvalidCampaign(
            f"[clients] profile = {pattern!r}: the configuration has the profiles {', '.join(patterns) or '(none)'}"
        )
    expressions = [(one, re.compile(fnmatch.translate(one))) for one in patterns]
    for client_id in known:
        if next((one for one, expression in expressions if expression.match(client_id)), None) == pattern:
            yield client_id


def _subscribers(topic: str, settings: "Settings", subscribers: Callable[[str], Iterable[ClientId]]) -> Iterable[ClientId]:
    if not is_topic_name(topic):
        raise InvalidCampaign(f"[clients] subscribers_of = {topic!r}: a topic name is allowed: not empty, without # and +")
    if not settings.routing.enabled:
        raise InvalidCampaign(
            "[clients] subscribers_of: routing.enabled is false, so nobody knows the subscribers; use list, file or pattern"
        )
    return subscribers(topic)
