from inflight.readers.recent_ids import RecentIds


def test_an_id_is_new_once_and_again_when_it_is_forgotten() -> None:
    recent = RecentIds(2)
    assert [recent.is_new(name) for name in ("a", "a", "b", "a", "c", "b", "a")] == [True, False, True, False, True, False, True]
