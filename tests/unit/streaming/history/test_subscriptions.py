from sinks.routing.subscription_table import SubscriptionTable
from state.model import QoS, Subscription
from state.records.subscriptions import SubscriptionList
from streaming.history.subscriptions import subscribers_of, subscriptions_of


def table(**filters: tuple[str, ...]) -> SubscriptionTable:
    made = SubscriptionTable()
    for client_id, names in filters.items():
        subscriptions = tuple(Subscription(topic_filter=name, qos=QoS.AT_LEAST_ONCE) for name in names)
        made.replace(client_id, SubscriptionList(connection_id=1, version=1, subscriptions=subscriptions))
    return made


def test_subscribers_of_a_topic_are_listed_with_each_matching_filter() -> None:
    found = subscribers_of(table(b=("plant/#", "plant/+", "other"), a=("plant/1",), c=("$share/g/plant/1",), d=("x",)), "plant/1")
    assert [(one.client_id, one.topic_filter, one.group) for one in found] == [
        ("a", "plant/1", ""),
        ("b", "plant/#", ""),
        ("b", "plant/+", ""),
        ("c", "plant/1", "g"),
    ]
    assert subscribers_of(table(), "plant/1") == []


def test_a_client_is_listed_with_all_that_it_subscribes_to() -> None:
    made = table(a=("x", "$share/g/x/#"))
    assert [(one.topic_filter, one.group, one.qos) for one in subscriptions_of(made, "a")] == [("x", "", 1), ("x/#", "g", 1)]
    assert list(subscriptions_of(made, "nobody")) == []
