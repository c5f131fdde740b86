"""streaming.engine.intake.newer_events: what people are told. tests/spark/test_newer_events.py has the rest."""

from streaming.engine.intake.newer_events import newer_event


def test_sparks_error_becomes_an_instruction() -> None:
    said = newer_event("Job aborted: [USER_RAISED_EXCEPTION] inflight-newer-event 6 my-inflight.events-1-42; SQLSTATE: P0001\n")
    assert said is not None
    assert said.startswith("the event at offset 42 in partition 1 of my-inflight.events has version 6, and this Inflight reads 5")
    assert "Start the version of Inflight that the gateways and bridges have, or a newer one" in said


def test_another_failure_is_none_of_this() -> None:
    assert newer_event("Job aborted: the disk is full") is None
