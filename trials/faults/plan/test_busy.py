"""trials/faults/plan/busy.py: one number makes the episodes, and they are those of busy clients."""

from itertools import islice

from trials.faults.plan.busy import BUSY_CLIENTS, episodes


def test_a_seed_makes_the_same_episodes() -> None:
    client = BUSY_CLIENTS[0]
    assert list(islice(episodes(7, client), 5)) == list(islice(episodes(7, client), 5))
    assert list(islice(episodes(7, client), 5)) != list(islice(episodes(8, client), 5))


def test_one_client_is_steadily_busy_one_has_bursts_and_one_is_deaf() -> None:
    steady, bursts, deaf = BUSY_CLIENTS
    found = list(islice(episodes(7, steady), 20))
    assert all(300 <= episode.count / episode.seconds <= 501 for episode in found)
    assert all(episode.count >= 300 and not episode.seconds for episode in islice(episodes(7, bursts), 20))
    assert [client.qos for client in BUSY_CLIENTS] == [1, 2, 1]
    assert [client.is_deaf for client in (steady, bursts, deaf)] == [False, False, True]
