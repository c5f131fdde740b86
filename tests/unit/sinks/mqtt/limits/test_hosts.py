import pytest

from sinks.mqtt.limits.hosts import Hosts, host_of


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no:address", "no:address"),
    ],
)
def test_an_ipv6_host_is_its_network(address: str, host: str) -> None:
    assert host_of(address) == host


def test_unlimited_networks_have_no_limit() -> None:
    hosts = Hosts(("127.0.0.0/8", "::1/128", "10.1.0.0/16"))
    assert [hosts.limited(address) for address in ("127.0.0.1", "::1", "10.1.2.3", "::ffff:10.1.2.3", "")] == [None] * 5
    assert hosts.limited("10.2.0.1") == "10.2.0.1"
    assert hosts.limited("::ffff:10.2.0.1") == "10.2.0.1"
    assert hosts.limited("2001:db8::1") == "2001:db8::/64"
