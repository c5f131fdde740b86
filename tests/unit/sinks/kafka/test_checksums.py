"""Every record that is read or written has a checksum: kafka-python would compute it in Python, byte by byte."""

from kafka.record import util


def test_checksums_are_computed_by_the_library_in_c() -> None:
    assert util._crc32c is util.crc32c_c
    assert util.calc_crc32c(b"123456789") == 0xE3069283, "the check value of CRC-32C (RFC 3720, B.4)"
