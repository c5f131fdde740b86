"""Breaks the functions of the fast path and of the phases one by one with mutmut, and fails if the tests notice less than before.

    python -m tests.mutation.survivors

`make mutmut` runs this; `[tool.mutmut]` in pyproject.toml names the files and the tests. mutmut changes functions. The rows of
the tables are data, so test_transition_tables.py breaks them; what is a property or a number, test_fast_path_values.py.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

MUTMUT: Final = str(Path(sys.executable).parent / "mutmut")
SURVIVORS: Final = {
    "state.connection.*": 3,
    "state.outbound.acknowledgements.*late*": 6,
    "state.outbound.endings.*": 2,
    "state.outbound.fast_path.adoption.*": 1,
    "state.outbound.fast_path.grants.*": 8,
    "state.outbound.fast_path.positions.*": 2,
    "state.outbound.inflight_window.*": 5,
    "state.outbound.transmission.*fill*": 0,
    "state.outbound.transmission.*read_ahead*": 0,
    "state.session.*accepts_fast_sent*": 0,
    "state.session.*is_of_this_session*": 0,
    "state.transitions.*": 3,
    "sinks.fast_path.router_memory.*": 2,
    "sinks.mqtt.connection.fast_path.*": 12,
}
"""The numbers of mutants of these functions that no test notices. Most change the text of an error, or nothing observable.

Lower a number when a new test notices more. Raise it only for a mutant that is no mistake.
"""


def main() -> int:
    """Returns the exit code: 1 if more mutants survive than are known, or if a function has another name now."""
    subprocess.run([MUTMUT, "run", "--max-children", "2", *SURVIVORS], check=True, stdout=subprocess.DEVNULL)
    said = subprocess.run([MUTMUT, "results", "--all", "true"], check=True, capture_output=True, text=True).stdout
    results = [line.strip().rsplit(": ", 1) for line in said.splitlines() if ": " in line]
    failed = False
    for pattern, known in SURVIVORS.items():
        own = [(name, status) for name, status in results if Path(name).match(pattern) and status != "not checked"]
        found = [name for name, status in own if status not in ("killed", "timeout")]
        print(f"{pattern}: {len(own)} mutants, {len(found)} survive, {known} are known", flush=True)
        if not own:
            failed = True
            print(f"no function is called {pattern}: give it its new name in SURVIVORS, and its file in [tool.mutmut]")
        if len(found) > known:
            failed = True
            for name in found:
                print(subprocess.run([MUTMUT, "show", name], capture_output=True, text=True).stdout)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
