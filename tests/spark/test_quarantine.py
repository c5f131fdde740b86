"""Some clients have unusable sessions, in a real query: the other clients continue, and a repaired version restores them."""

from dataclasses import replace

import pytest

from state.commands import AcceptConnection, CloseConnection, GatewayCommand, SendPublish
from state.events import DropRequested, RestoreRequested
from state.records.commands import decode_command_batch
from state.settings import SessionSettings
from streaming.engine.operator.reported_counts import CLIENTS_QUARANTINED, ReportedCounts
from streaming.engine.operator.state_row import QUARANTINED_ROW_VERSION
from tests.spark.broken_function import Broken
from tests.spark.conftest import Pipeline
from tests.support.waiting import wait_until


def commands_for(pipeline: Pipeline, client: str, connection_id: int) -> list[GatewayCommand]:
    """Returns all commands for one connection so far."""
    records = pipeline.read(pipeline.settings.topics.commands, 0)
    batches = [decode_command_batch(record.value or b"") for record in records if record.key == client.encode()]
    return [command for batch in batches for command in batch.commands if command.connection_id == connection_id]


def await_command(pipeline: Pipeline, client: str, connection_id: int, kind: type[GatewayCommand]) -> GatewayCommand:
    def there() -> bool:
        return any(isinstance(command, kind) for command in commands_for(pipeline, client, connection_id))

    wait_until(there, f"{kind.__name__} for {client}", check=pipeline.check)
    return next(command for command in commands_for(pipeline, client, connection_id) if isinstance(command, kind))


@pytest.mark.faults
@pytest.mark.promise("quarantine")
def test_a_damaged_row_and_a_raising_timer_stop_no_other_client(pipeline: Pipeline) -> None:
    topics = pipeline.settings.topics
    pipeline.settings = replace(pipeline.settings, session=SessionSettings(retry_interval_ms=500))
    counts = ReportedCounts(pipeline.spark.sparkContext)
    pipeline.start(Broken(pipeline.settings, counts.accumulator))
    for client in ("good", "timer", "damaged"):
        pipeline.connect(client, connection_id=1)
        await_command(pipeline, client, 1, AcceptConnection)
        pipeline.send_message(client, b"first", ("message-id", b"first"))
        await_command(pipeline, client, 1, SendPublish)
    pipeline.call("timer")
    await_command(pipeline, "timer", 1, CloseConnection)
    pipeline.send_message("damaged", b"second", ("message-id", b"second"))

    letters = pipeline.read(topics.dead_letters, 3)
    assert {dict(letter.headers)["x-last-death-reason"] for letter in letters} == {b"quarantined"}
    versions_told = {(letter.key, dict(letter.headers).get("x-state-row-version")) for letter in letters}
    assert versions_told == {(b"damaged", b"1"), (b"timer", b"1"), (b"damaged", None)}
    (second,) = [letter for letter in letters if letter.value == b"second"]
    assert dict(second.headers)["mqtt-topic"] == b"t"
    for client in ("timer", "damaged"):
        pipeline.connect(client, connection_id=2)
        close = await_command(pipeline, client, 2, CloseConnection)
        assert isinstance(close, CloseConnection)
        assert close.reason_code == 0x83
    pipeline.send_message("good", b"goes on")
    wait_until(
        lambda: any(getattr(command, "payload", b"") == b"goes on" for command in commands_for(pipeline, "good", 1)),
        "the other client goes on",
        check=pipeline.check,
    )
    pipeline.await_batches(2)
    assert counts.pop()[CLIENTS_QUARANTINED] == 2
    pipeline.stop()
    rows = pipeline.spark.read.format("statestore").load(str(pipeline.checkpoint)).collect()
    versions = {row["key"][0]: row["value"]["groupState"]["version"] for row in rows}
    assert versions == {"good": 1, "timer": QUARANTINED_ROW_VERSION, "damaged": QUARANTINED_ROW_VERSION}

    pipeline.start()
    pipeline.send_event("timer", RestoreRequested())
    pipeline.connect("timer", connection_id=3)
    again = await_command(pipeline, "timer", 3, SendPublish)
    assert isinstance(again, SendPublish)
    assert (again.payload, again.dup) == (b"first", True)
    pipeline.send_event("damaged", DropRequested())
    pipeline.connect("damaged", connection_id=3)
    accept = await_command(pipeline, "damaged", 3, AcceptConnection)
    assert isinstance(accept, AcceptConnection)
    assert not accept.session_present
