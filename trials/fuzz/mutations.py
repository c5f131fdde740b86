"""Bytes that are nearly right."""

import random
from collections.abc import Sequence

_MOST_CHANGES = 4
_RARE = 20
_LARGE_BYTES = 70_000
_TELLING = (
    b"\x00",
    b"\xff",
    b"\x80",
    b"\x7f",
    b"\xff\xff\xff\xff",
    b"\xed\xa0\x80",
    b"\xc1",
    b"-1",
    b"99999999999999999999",
    b"{}",
    b"null",
)
"""Values at the borders of encodings and of integers."""


def mutated(dice: random.Random, data: bytes, others: Sequence[bytes] = (b"",), *, safe: int = 0) -> bytes:
    """Makes one to four changes: bytes replaced, removed, inserted, swapped with a piece of another input, repeated, cut off. The
    first `safe` bytes stay."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, _MOST_CHANGES)):
        at = dice.randint(min(safe, len(changed)), len(changed))
        end = min(len(changed), at + dice.choice((1, 1, 2, 4, 16)))
        match dice.randrange(7):
            case 0:
                changed[at:end] = dice.randbytes(end - at)
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = dice.choice(_TELLING)
            case 3:
                changed[at:end] = dice.choice(_TELLING)
            case 4:
                other = dice.choice(others)
                start = dice.randint(0, len(other))
                changed[at:end] = other[start : start + dice.randint(0, 32)]
            case 5:
                changed[at:at] = changed[at:end] * (_LARGE_BYTES if dice.randrange(_RARE) == 0 else dice.randint(1, 8))
            case _:
                del changed[at:]
    return bytes(changed)


def pieces(dice: random.Random, data: bytes) -> list[bytes]:
    """The same bytes as they may come out of a socket."""
    cuts = sorted(dice.randint(0, len(data)) for _ in range(dice.randrange(3)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
