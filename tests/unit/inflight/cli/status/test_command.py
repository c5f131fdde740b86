import os
import signal

import pytest

from inflight.cli.status.command import _interrupts


def test_an_interrupt_waits_for_the_end_of_a_measurement() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _interrupts() as interrupted:
        assert not interrupted(0.0)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted(60.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
