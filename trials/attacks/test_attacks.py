"""Every attack for a few seconds: `make test-faults`. Longer, with latencies: `make attacks`."""

from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from trials.attacks.attackers import ATTACKS
from trials.attacks.report import show
from trials.attacks.result import failures
from trials.attacks.run import Settings, measure

SECONDS = 4.0


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_good_devices_get_everything_once_and_the_gateway_stays_small(tmp_path: Path) -> None:
    console = Console(width=200)
    result = measure(Settings(seconds=SECONDS, is_small=True, warm_up_s=5.0), tmp_path, Progress(console=console))
    show(result, console)
    assert failures(result) == []
    # … and every attack has taken place.
    assert len(result.phases) == 1 + len(ATTACKS)
    assert all(sum(phase.attacker.done.values()) for phase in result.phases[1:])
