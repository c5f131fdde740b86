import os
import subprocess
import threading
from pathlib import Path

import pytest

from streaming.history.spark import _without_warning
from tests.support.waiting import DEADLINE_S

WARNING = "WARNING: Using incubator modules: jdk.incubator.vector"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", ""),
        (f"{WARNING}\n", ""),
        (f"{WARNING}\nout of memory\n", "out of memory\n"),
        (f"NOTE: Picked up JDK_JAVA_OPTIONS: -Xmx1g\n{WARNING}\n", "NOTE: Picked up JDK_JAVA_OPTIONS: -Xmx1g\n"),
        ("no space left\nand that is all", "no space left\nand that is all"),
        (f"{WARNING}\n[Stage 0:>  (0 + 2) / 4]\r[Stage 0:=> (2 + 2) / 4]", "[Stage 0:>  (0 + 2) / 4]\r[Stage 0:=> (2 + 2) / 4]"),
    ],
)
@pytest.mark.processes
def test_standard_error_is_shown_without_the_incubator_warning(said: str, shown: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        with _without_warning(file.fileno()) as stderr:
            [relay] = [thread for thread in threading.enumerate() if thread.name == "jvm-stderr"]
            subprocess.run(["printf", "%s", said], stdout=stderr, check=True)
        relay.join(DEADLINE_S)
    assert out.read_bytes().decode() == shown


@pytest.mark.processes
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_closed_pipe_ends_only_the_output() -> None:
    read, out = os.pipe()
    os.close(read)
    with _without_warning(out) as stderr:
        [relay] = [thread for thread in threading.enumerate() if thread.name == "jvm-stderr"]
        subprocess.run(["printf", "%s", "out of memory"], stdout=stderr, check=True)
        relay.join(DEADLINE_S)
        assert not relay.is_alive()
    os.close(out)
