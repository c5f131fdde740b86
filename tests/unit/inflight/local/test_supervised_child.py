import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from inflight.local import supervised_child
from inflight.local.child_log import ChildLog
from inflight.local.errors import ChildProcessFailed
from inflight.local.supervised_child import SupervisedChild, explain_status, kill_when_stuck
from tests.support.waiting import DEADLINE_S, until

pytestmark = pytest.mark.processes

AUTOGROUP = Path("/proc/self/autogroup")
PATIENCE_S = 0.5
LONGER_S = 1.5
"""Seconds for a child that works: even on a busy machine it gets processor time within them."""


@pytest.fixture
def children() -> Iterator[list["subprocess.Popen[bytes]"]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for child in made:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with the children of the child
        child.wait()


def start(children: list["subprocess.Popen[bytes]"], code: str) -> int:
    children.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
    return children[-1].pid


@pytest.mark.promise("slow-first-micro-batch")
def test_a_working_child_is_not_killed_during_a_long_start(children: list["subprocess.Popen[bytes]"]) -> None:
    # The work is done by a child of the child, as by the engine's JVM.
    pid = start(children, "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])")
    said: list[str] = []

    async def watch() -> None:
        async with asyncio.timeout(2.3 * LONGER_S):
            await kill_when_stuck("engine", pid, say=said.append, patience_s=LONGER_S)

    with pytest.raises(TimeoutError):
        asyncio.run(watch())
    assert children[0].poll() is None
    assert said
    assert all("but it works" in text for text in said)


def test_a_child_that_does_nothing_is_killed(children: list["subprocess.Popen[bytes]"]) -> None:
    pid = start(children, "import time; time.sleep(60)")
    said: list[str] = []
    time.sleep(PATIENCE_S)  # its start is work, too
    asyncio.run(kill_when_stuck("engine", pid, say=said.append, patience_s=PATIENCE_S))
    assert children[0].wait(DEADLINE_S) == -9
    assert "is killed" in said[-1]


LEAVES_A_CHILD = """
import subprocess, sys, time
if len(sys.argv) > 1 and sys.argv[1] == "sleep":
    time.sleep(600)
child = subprocess.Popen([sys.executable, __file__, "sleep"])
with open(__file__ + ".pids", "a") as pids:
    print(child.pid, file=pids)
print("ready", flush=True)
sys.exit(3)
"""


@pytest.fixture
def leaves_a_child(tmp_path: Path) -> Iterator[Path]:
    program = tmp_path / "program.py"
    program.write_text(LEAVES_A_CHILD)
    yield program
    for pid in Path(f"{program}.pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)


async def test_a_child_is_restarted_although_what_it_started_holds_its_output(
    leaves_a_child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grandchild lives on, as an engine's JVM does that outlives its engine."""
    monkeypatch.setattr(supervised_child, "bound_to_parent", lambda command: [sys.executable, str(leaves_a_child)])
    said: list[str] = []
    child = SupervisedChild("engine", list, say=said.append)
    running = asyncio.create_task(child.run())
    await until(lambda: any("is back" in text for text in said), "it is restarted")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await child.stop(0)
    assert "the engine ended unexpectedly (exit status 3" in said[0]


IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


async def test_a_start_is_interrupted_without_the_patience_of_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_child, "bound_to_parent", lambda command: [sys.executable, "-c", IGNORES_SIGTERM])
    monkeypatch.setattr(supervised_child, "_STOP_DURING_START_S", 0.1)
    said: list[str] = []
    child = SupervisedChild("engine", list, say=said.append)
    started_s = time.monotonic()
    running = asyncio.create_task(child.run())
    await until(lambda: child.pid is not None, "it is started")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await child.stop(2 * DEADLINE_S)
    assert time.monotonic() - started_s < DEADLINE_S
    assert said == ["interrupting the start of the engine"]


FAILS = """
import sys
sys.stderr.write("2026-01-01 [info] a line\\n" * 30 + "inflight: the port is taken.\\nChoose another.\\n")
sys.exit(1)
"""


def test_the_last_words_of_a_child_are_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_child, "bound_to_parent", lambda command: [sys.executable, "-c", FAILS])
    log = tmp_path / "engine.log"
    child = SupervisedChild("engine", list, say=print, log=log)
    with pytest.raises(ChildProcessFailed) as caught:
        asyncio.run(child.run())
    assert str(caught.value) == (
        "the engine ended (exit status 1) before it was ready. It says:\n  the port is taken.\n  Choose another.\n"
        f"The rest is in {log}. Mend that and start again."
    )


TALKS = """
import sys
print("ready", flush=True)
for number in range(3000):
    print("a line on standard error", number, file=sys.stderr)
    print("a line of output", number)
"""


async def test_a_log_rotates_while_its_child_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, log = tmp_path / "program.py", tmp_path / "gateway.log"
    program.write_text(TALKS + "sys.stdout.flush(); import time; time.sleep(600)")
    monkeypatch.setattr(supervised_child, "bound_to_parent", lambda command: [sys.executable, str(program)])
    monkeypatch.setattr(supervised_child, "ChildLog", partial(ChildLog, limit_bytes=128_000))
    child = SupervisedChild("gateway", list, say=print, log=log)

    def lines() -> list[str]:
        files = (file for file in (log.with_name("gateway.log.1"), log) if file.exists())
        return [line for file in files for line in file.read_text().splitlines()]

    running = asyncio.create_task(child.run())
    await until(lambda: len(lines()) == 6_000, "every line is there")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await child.stop(0)
    assert len(set(lines())) == 6_000
    assert log.stat().st_size <= 128_000


async def test_the_pause_before_a_restart_grows_to_the_limit_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import pathlib, sys
first = pathlib.Path({str(tmp_path / "first")!r})
if not first.exists():
    first.touch()
    print("ready", flush=True)
sys.exit(1)
""")
    monkeypatch.setattr(supervised_child, "bound_to_parent", lambda command: [sys.executable, str(program)])
    monkeypatch.setattr(supervised_child, "FIRST_PAUSE_S", 0.01)
    said: list[str] = []
    limits = [0.02] * 3 + [0.04]
    child = SupervisedChild(
        "engine", list, say=said.append, hint=lambda: " at record 7", longest_pause_s=lambda: limits.pop(0) if limits else 0.04
    )
    running = asyncio.create_task(child.run())
    await until(lambda: len(said) >= 4, "it is restarted")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await child.stop(0)
    assert [text.partition("again in ")[2] for text in said[:4]] == [
        f"{pause} s at record 7" for pause in (0.01, 0.02, 0.02, 0.04)
    ]


async def test_a_standby_stands_back_only_after_its_takeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = tmp_path / "dead"
    program = tmp_path / "program.py"
    program.write_text(f"""
import pathlib, time
print("ready standby metrics=h:1", flush=True)
while not pathlib.Path({str(dead)!r}).exists():
    time.sleep(0.01)
print("ready engine metrics=h:2", flush=True)
time.sleep(600)
""")
    monkeypatch.setattr(supervised_child, "bound_to_parent", lambda command: [sys.executable, str(program)])
    lowered: list[int] = []
    monkeypatch.setattr(supervised_child, "lower_priority_of", lambda pid, nice: lowered.append(nice))
    said: list[str] = []
    child = SupervisedChild("standby", list, say=said.append, nice=10)
    running = asyncio.create_task(child.run())
    await child.ready.wait()
    assert (child.role, child.words, lowered) == ("standby", {"metrics": "h:1"}, [])
    dead.touch()
    await until(lambda: said == ["the standby works as the engine now"], "it has taken over")
    assert (child.role, child.words, lowered) == ("engine", {"metrics": "h:2"}, [10])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await child.stop(0)


async def test_a_restart_waits_while_it_would_disturb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text('print("ready", flush=True)')
    monkeypatch.setattr(supervised_child, "bound_to_parent", lambda command: [sys.executable, str(program)])
    monkeypatch.setattr(supervised_child, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervised_child, "_WATCH_S", 0.01)
    said: list[str] = []
    answers = [False, False, True]
    child = SupervisedChild("engine", list, say=said.append, may_restart=lambda: answers.pop(0) if answers else True)
    running = asyncio.create_task(child.run())
    await until(lambda: any("is back" in text for text in said), "it is restarted")
    assert answers == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await child.stop(0)


def test_metrics_of_a_child_are_served_by_it_or_its_children() -> None:
    child = SupervisedChild("gateway", list, say=print)
    assert dict(child.metrics()) == {}
    child.words = {"metrics": "h:1"}
    assert dict(child.metrics()) == {"gateway": "h:1"}
    assert dict(child.metrics("standby")) == {"standby": "h:1"}
    child.words = {"metrics": "h:1,h:2"}
    assert dict(child.metrics()) == {"gateway-1": "h:1", "gateway-2": "h:2"}


def test_a_status_is_explained_to_people() -> None:
    assert [explain_status(status) for status in (1, -9)] == ["exit status 1", "signal SIGKILL"]
    assert explain_status(3) == "exit status 3: the watchdog of the engine, whose query hung"


LOWERED = (
    "import subprocess; from inflight.local.child_process import lower_priority; lower_priority(3); subprocess.run('{}'.split())"
)
"""Background work that runs a command."""


def test_background_work_stands_back_with_its_children() -> None:
    own = subprocess.run(["nice"], capture_output=True, check=True)
    nicer = subprocess.run([sys.executable, "-c", LOWERED.format("nice")], capture_output=True, check=True)
    assert int(nicer.stdout) == min(19, int(own.stdout) + 3)


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel shares the processor among processes, whatever their session")
def test_a_session_that_stands_back_does_so_behind_other_sessions() -> None:
    command = [sys.executable, "-c", LOWERED.format(f"cat {AUTOGROUP}")]
    own = subprocess.run(command, capture_output=True, check=True, start_new_session=True)
    assert own.stdout.split()[-2:] == [b"nice", b"3"]
    before = AUTOGROUP.read_text(encoding="ascii")
    ours = subprocess.run(command, capture_output=True, check=True)
    assert ours.stdout.decode().strip() == before.strip(), "it is not in a session of its own"
