"""Python's garbage collector in a process that answers devices."""

import gc


def spare_what_stays() -> None:
    """For a process that is ready: the collector does not look at what there is now any more, which is modules for the most part.

    Looking through them takes 75 to 100 ms, about every tenth second, in which no device gets anything.
    """
    gc.collect()
    gc.freeze()
