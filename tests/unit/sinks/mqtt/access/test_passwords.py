import time

from sinks.mqtt.access.password_file import HASHER
from sinks.mqtt.access.passwords import PasswordHash, Passwords


def passwords(**users: str) -> Passwords:
    made = Passwords(cache_ms=1_000)
    made.users = {name: HASHER.hash(password) for name, password in users.items()}
    return made


def test_a_users_password_is_verified() -> None:
    known = passwords(ada="pässword")
    assert Passwords.verify(known.hash_of("ada", "pässword".encode()), "pässword".encode())
    for name, password in (("ada", b"wrong"), ("ada", b""), ("ada", b"\xff"), ("eve", b"p")):
        assert not Passwords.verify(known.hash_of(name, password), password)


def test_an_unknown_user_takes_as_long_as_a_wrong_password() -> None:
    known = passwords(ada="p")

    def spent(name: str) -> float:
        """Returns the shortest thread time of five tries, in seconds, because the machine may be busy."""
        hashed, best = known.hash_of(name, b"wrong"), 1e9
        for _ in range(5):
            before = time.thread_time()
            Passwords.verify(hashed, b"wrong")
            best = min(best, time.thread_time() - before)
        return best

    assert 0.5 < spent("ada") / spent("eve") < 2


def test_a_correct_password_is_cached_for_a_while() -> None:
    known = passwords(ada="p")
    right = known.hash_of("ada", b"p")
    assert not known.is_cached(right, 0)
    known.remember(right, 0)
    assert known.is_cached(known.hash_of("ada", b"p"), 999)
    assert not known.is_cached(known.hash_of("ada", b"p"), 1_000)
    assert not known.is_cached(known.hash_of("ada", b"q"), 0)


def test_a_changed_or_removed_user_is_not_remembered() -> None:
    known = passwords(ada="p")
    known.remember(known.hash_of("ada", b"p"), 0)
    known.users = {"ada": HASHER.hash("p")}
    assert not known.is_cached(known.hash_of("ada", b"p"), 0)
    known.users = {}
    assert not known.is_cached(known.hash_of("ada", b"p"), 0)


def test_user_and_password_are_separate_in_the_digest() -> None:
    known = passwords()
    assert known.hash_of("ab", b"c").digest != known.hash_of("a", b"bc").digest


def test_a_digest_differs_in_each_process() -> None:
    assert passwords().hash_of("a", b"p").digest != passwords().hash_of("a", b"p").digest


def test_the_cache_keeps_the_newest_correct_passwords() -> None:
    known = passwords()
    hashes = [PasswordHash("", b"%d" % number) for number in range(100_001)]
    for hashed in hashes:
        known.remember(hashed, 0)
        known.remember(hashes[1], 0)
    assert [known.is_cached(hashed, 0) for hashed in (hashes[0], *hashes[1:3], hashes[-1])] == [False, True, True, True]
