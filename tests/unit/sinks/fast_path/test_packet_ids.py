"""sinks.fast_path.packet_ids"""

from sinks.fast_path.packet_ids import FastPacketIds
from state.model import MAX_PACKET_ID, MAX_SESSION_PACKET_ID, MIN_FAST_PACKET_ID, PacketId, Position


def any_id(packet_id: PacketId) -> bool:
    return True


def used(ids: FastPacketIds, offset: int) -> PacketId:
    packet_id = ids.next(any_id)
    assert packet_id is not None
    ids.use(packet_id, Position(0, offset))
    return packet_id


def test_the_two_halves_meet() -> None:
    assert MIN_FAST_PACKET_ID == MAX_SESSION_PACKET_ID + 1 == 32_768


def test_ids_go_round_from_the_last_one_used() -> None:
    ids = FastPacketIds()
    assert used(ids, 1) == MIN_FAST_PACKET_ID
    ids = FastPacketIds()
    ids.granted(Position(0, 0), (), MAX_PACKET_ID - 1)
    assert [used(ids, offset) for offset in (1, 2, 3)] == [MAX_PACKET_ID, MIN_FAST_PACKET_ID, MIN_FAST_PACKET_ID + 1]
    ids.granted(Position(0, 3), (), 40_000)
    assert used(ids, 4) == MIN_FAST_PACKET_ID + 2, "what was used here is later than what the session knows of"


def test_an_id_is_free_again_when_a_grant_from_behind_its_message_does_not_list_it() -> None:
    ids = FastPacketIds()
    first, second, third = (used(ids, offset) for offset in (1, 2, 3))
    ids.granted(Position(0, 2), (second,), 0)
    ids.use(MAX_PACKET_ID, Position(0, 9))  # all the way round
    assert ids.next(any_id) == first
    ids.use(first, Position(0, 10))
    assert ids.next(any_id) == third + 1
    ids.granted(Position(0, 10), (), 0)
    ids.use(MAX_PACKET_ID, Position(0, 11))
    assert [used(ids, offset) for offset in (12, 13, 14)] == [first, second, third]


def test_a_grant_for_another_partition_frees_nothing() -> None:
    ids = FastPacketIds()
    used(ids, 1)
    ids.granted(Position(1, 50), (), 0)
    ids.use(MAX_PACKET_ID, Position(1, 51))
    assert ids.next(any_id) == MIN_FAST_PACKET_ID + 1


def test_an_id_that_is_still_on_the_wire_is_passed_over_and_without_one_there_is_none() -> None:
    ids = FastPacketIds()
    assert ids.next(lambda packet_id: packet_id > MIN_FAST_PACKET_ID + 1) == MIN_FAST_PACKET_ID + 2
    assert ids.next(lambda packet_id: False) is None
    ids.granted(Position(0, 0), tuple(range(MIN_FAST_PACKET_ID, MAX_PACKET_ID)), 0)
    assert ids.next(any_id) == MAX_PACKET_ID
