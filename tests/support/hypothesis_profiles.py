"""Sets how many examples property tests try.

`test` is for every `make test` and always tries the same examples; so does `thousand`, for `make properties`, which .ci/run
calls. `quick` is for while you edit. HYPOTHESIS_PROFILE chooses one of them. INFLIGHT_SOAK=N
tries N examples, longer and other ones each time. `make soak` sets it, to find unknown defects. A failure prints the shortest
example that shows it; its seed is kept in .hypothesis and tried first next time.
"""

import os

from hypothesis import HealthCheck, settings

_EVERYWHERE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}


def load() -> None:
    """Registers the profiles and loads one. tests/conftest.py calls it before any module with property tests is imported."""
    settings.register_profile("test", max_examples=50, stateful_step_count=30, derandomize=True, **_EVERYWHERE)
    settings.register_profile("thousand", max_examples=1_000, stateful_step_count=60, derandomize=True, **_EVERYWHERE)
    soak = os.environ.get("INFLIGHT_SOAK")
    if soak:
        settings.register_profile("soak", max_examples=int(soak), stateful_step_count=120, **_EVERYWHERE)
    settings.register_profile("quick", max_examples=100, stateful_step_count=30, report_multiple_bugs=False, **_EVERYWHERE)
    settings.load_profile("soak" if soak else os.environ.get("HYPOTHESIS_PROFILE", "test"))
