"""A moment of `make fuzz`, with the same inputs each time."""

import gc
import sys
from pathlib import Path

import pytest

from trials.fuzz.run import MOST_BLOCKS, Fuzzed
from trials.fuzz.target import Target
from trials.fuzz.targets import TARGETS

INPUTS = 100


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
@pytest.mark.promise("any-bytes-elsewhere")
def test_nothing_breaks_and_nothing_grows_whatever_comes(target: type[Target], tmp_path: Path) -> None:
    fuzzed = Fuzzed(target(tmp_path))
    for _ in range(INPUTS):
        fuzzed.feed(7)
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(INPUTS):
        fuzzed.feed(7)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < MOST_BLOCKS
    assert 0 < fuzzed.taken < fuzzed.inputs
