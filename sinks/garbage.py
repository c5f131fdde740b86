"""Python's garbage collector in a process that answers devices."""

import gc
from typing import Final

_GEN0_THRESHOLD: Final = 10_000
"""Python's own threshold is 700, and what a device leaves is freed without the collector: to look for it took a twelfth of the
time that CONNECTs take."""


def freeze_startup_heap() -> None:
    """For a process that is ready: the collector does not look at what there is now any more, which is modules for the most part,
    and less often at the rest.

    Looking through them takes 75 to 100 ms, about every tenth second, in which no device gets anything.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GEN0_THRESHOLD, *gc.get_threshold()[1:])
