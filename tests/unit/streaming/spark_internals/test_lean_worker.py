"""The lean worker path against PySpark's own: the same Arrow streams through both, the answers byte for byte.

tests/spark/test_lean_worker.py does the same with streams of a real JVM, and pins that those here look like them.
"""

import pickle
import random
import sys
import tracemalloc
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import pyspark
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.pandas.serializers import ApplyInPandasWithStateSerializer
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from state.events import ClientConnected, ConnectionLost, DeadlineReached, DropRequested, PubAckReceived, RestoreRequested
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from state.records.record import Header, SinkRecord
from streaming import spark_internals
from streaming.engine.operator.cells import EVENTS, MESSAGES
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import SessionOperator, TaskOperator
from streaming.engine.operator.sink_columns import SinkRows
from streaming.spark_internals import lean_streams, lean_worker
from streaming.spark_internals.lean_streams import LeanState
from streaming.spark_internals.lean_task import layout_of
from tests.unit.streaming.engine.operator.operator_host import cell, group_state
from tests.unit.streaming.spark_internals.worker_replay import NOW, STATE_TYPE, Given, Probe, Task, arrow_stream, read_answer

ROW = (1, True, 2, 3, 400, None, NOW + 5, b"\x00blob")


@pytest.fixture(autouse=True)
def paths() -> list[str]:
    """Returns the path of each call."""
    lean_worker._say.cache_clear()
    Probe.ran.clear()
    return Probe.ran


def both(body: Any, given: bytes, **conf: str) -> tuple[bytes, bytes]:
    """The answers of the stock path and of the lean one."""
    answers = []
    for lean in (False, True):
        Probe.ran.clear()
        answers.append(Task(Probe(body, lean=lean), **conf).run(given))
        assert set(Probe.ran) <= {"lean" if lean else "stock"}
    return answers[0], answers[1]


def play(key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
    """Does everything that a function may do; the key selects what comes when."""
    number = int(key[0])
    seen = [] if state.hasTimedOut else list(islice(cells, number % 4) if number % 3 == 0 else cells)
    match number % 7:
        case 0:
            pass
        case 1:
            state.remove()
        case 2:
            state.update(ROW)
            state.setTimeoutDuration(1 + number)
        case 3:
            state.update((1, False, len(seen), 0, sum(map(len, seen)), NOW, None, b"".join(seen)))
        case 4:
            state.setTimeoutDuration(77)
        case 5:
            state.remove()
            state.update((None,) * 8)
        case _:
            state.update((*(state.getOption or ROW)[:-1], b"-" * number))
    facts = repr((key, seen, state.exists, state.getOption, state.hasTimedOut, state.getCurrentProcessingTimeMs()))
    headers = (None, (), (Header("h", b"\xff"),), (Header("ß", None), Header("", b"")))[number % 4]
    partition = number if number % 2 else None
    record = SinkRecord(f"topic-{number}", key[0].encode(), None if number % 11 == 0 else facts.encode(), headers, partition)
    return [record, SinkRecord("t", b"\x00\xff", b""), record, record][: number % 5 - 1] if number % 5 else []


def groups(seed: int, count: int) -> list[Given]:
    draw = random.Random(seed)
    made = []
    for number in range(count):
        row = (*ROW[:-1], draw.randbytes(draw.choice((0, 5, 300)))) if draw.random() < 0.6 else None
        timed_out = row is not None and draw.random() < 0.2
        cells = (
            () if timed_out else tuple(draw.randbytes(draw.choice((0, 1, 40))) for _ in range(draw.choice((1, 1, 1, 2, 9, 60))))
        )
        made.append(Given(str(number), cells, row, timed_out))
    return made


@pytest.mark.parametrize(
    ("batch_rows", "count", "max_records"), [(1, 20, "2000"), (7, 100, "3"), (50, 100, "0"), (500, 250, "100")]
)
def test_both_paths_answer_byte_for_byte_the_same(batch_rows: int, count: int, max_records: str) -> None:
    given = arrow_stream(groups(batch_rows, count), batch_rows)
    stock, lean = both(play, given, spark_sql_execution_arrow_maxRecordsPerBatch=max_records)
    assert read_answer(lean) == read_answer(stock)
    assert lean == stock


def test_a_task_without_groups_has_an_empty_answer() -> None:
    assert both(play, arrow_stream([])) == (b"", b"")


def test_a_function_without_records_still_stores_its_states() -> None:
    def silent(key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
        state.update(ROW)
        return []

    stock, lean = both(silent, arrow_stream(groups(1, 100)))
    assert lean == stock
    assert read_answer(lean).sizes == [(0, 100)]


def test_large_columns_are_read_value_by_value_and_large_answers_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    given = arrow_stream(groups(2, 200))
    stock, lean = both(play, given)
    assert lean == stock
    monkeypatch.setattr(lean_streams, "AT_ONCE_BYTES", 100)
    assert Task(Probe(play, lean=True)).run(given) == stock
    monkeypatch.setattr(lean_streams, "BATCH_BYTES", 3_000)
    divided = read_answer(Task(Probe(play, lean=True)).run(given))
    assert len(divided.sizes) > 10
    assert divided.without_sizes() == read_answer(stock).without_sizes()


class Discarded:
    """A file that keeps nothing but its size."""

    closed = False
    size = 0

    def write(self, data: Any) -> int:
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass


def test_memory_does_not_grow_with_the_payloads_of_a_batch() -> None:
    cell, blob = b"x" * 400_000, b"b" * 400_000
    given = arrow_stream(
        [*(Given(str(number), (cell,), (*ROW[:-1], blob)) for number in range(150)), Given("divided", (cell,) * 100)], 200
    )
    assert len(given) > 150_000_000

    def echo(key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> Iterable[SinkRecord]:
        size = sum(len(cell) for cell in cells)
        state.update((1, True, size, 0, 0, None, None, blob[1:]))
        return (SinkRecord("t", b"k", cell + b"y") for _ in range(2))

    task, out = Task(Probe(echo, lean=True)), Discarded()
    tracemalloc.start()
    try:
        task.run(given, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.size > 180_000_000
    # The batch as the JVM made it is there as a whole; what this path makes of it is not.
    assert peak < 150 * 800_000 + 50 * 400_000 + 3 * lean_streams.BATCH_BYTES


FINE = SinkRecord("t", b"k", b"fine")


def boom(key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
    if key[0] == "40":
        raise KeyError("boom")
    return [FINE]


def stop(key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
    if key[0] == "40":
        next(iter(()))
    return [FINE]


@pytest.mark.parametrize("max_records", ["10", "2000"])
@pytest.mark.parametrize(("body", "error", "words"), [(boom, KeyError, "boom"), (stop, PySparkRuntimeError, "STOP_ITERATION")])
def test_an_exception_leaves_the_worker_after_the_same_bytes(body: Any, error: Any, words: str, max_records: str) -> None:
    written = []
    for lean in (False, True):
        task = Task(Probe(body, lean=lean), spark_sql_execution_arrow_maxRecordsPerBatch=max_records)
        with pytest.raises(error, match=words):
            task.run(arrow_stream([Given(str(number), (b"c",)) for number in range(100)]))
        written.append(task.written.getvalue())
    assert written[0] == written[1]
    # Nothing but the exception goes to the JVM when no batch was ready.
    assert (written[1] == b"") == (max_records == "2000")


def test_a_reused_worker_follows_the_path_of_each_task(paths: list[str]) -> None:
    before = dict(vars(ApplyInPandasWithStateSerializer))
    given = arrow_stream(groups(3, 50))
    wanted = Task(Probe(play, lean=False)).run(given)
    for lean in (True, False, True, True, False):
        paths.clear()
        task = Task(Probe(play, lean=lean))
        assert task.run(given) == wanted
        assert set(paths) == {"lean" if lean else "stock"}
        assert not {"load_stream", "dump_stream"} & set(vars(task.serializer))
    assert dict(vars(ApplyInPandasWithStateSerializer)) == before


def test_a_failed_lean_task_leaves_nothing_for_the_next_one(paths: list[str]) -> None:
    with pytest.raises(KeyError):
        Task(Probe(boom, lean=True)).run(arrow_stream([Given("40", (b"",))]))
    paths.clear()
    Task(Probe(play, lean=False)).run(arrow_stream(groups(4, 10)))
    assert set(paths) == {"stock"}


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        ({"spark_sql_execution_arrow_useLargeVarTypes": "true"}, "useLargeVarTypes"),
        ({"spark_sql_pyspark_udf_profiler": "perf"}, "profiler"),
    ],
)
def test_settings_that_need_the_stock_path_get_it(
    conf: dict[str, str], reason: str, paths: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.worker.wrap_perf_profiler", lambda function, *_: function)
    for _ in range(2):
        Task(Probe(play, lean=True), **conf).run(arrow_stream(groups(5, 10)))
    assert set(paths) == {"stock"}
    assert capsys.readouterr().err.count(reason) == 1


def test_a_version_that_was_not_tried_gets_the_stock_path(
    paths: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lean_worker.why_off() is None
    monkeypatch.setattr(pyspark, "__version__", "4.9.9")
    assert "4.9.9" in str(lean_worker.why_off())
    Task(Probe(play, lean=True)).run(arrow_stream(groups(6, 10)))
    assert set(paths) == {"stock"}
    assert "4.9.9" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "pyspark.sql.pandas.serializers.ApplyInPandasWithStateSerializer",
        "pyspark.sql.pandas.serializers.ArrowStreamSerializer",
        "pyspark.util.fail_on_stopiteration",
        "pyspark.serializers.pickle_protocol",
        "pyspark.sql.types._parse_datatype_json_string",
    ],
)
def test_a_pyspark_without_a_name_that_is_replaced_gets_the_stock_path(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leanly(key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
        raise AssertionError("the lean path")

    for module in ("lean_streams", "lean_task"):
        monkeypatch.delitem(sys.modules, f"streaming.spark_internals.{module}")
        monkeypatch.delattr(spark_internals, module)
    monkeypatch.delattr(name)
    monkeypatch.setattr(lean_worker, "_task_being_read", lambda: {"ser": object()})
    assert name.rpartition(".")[2] in str(lean_worker.why_off())
    assert not lean_worker.use_lean_worker(leanly, value_column=1, row_format=SinkRows())
    assert "takes PySpark's stock path" in capsys.readouterr().err


def test_a_function_that_is_unpickled_elsewhere_is_only_that(capsys: pytest.CaptureFixture[str]) -> None:
    operator = pickle.loads(pickle.dumps(SessionOperator(PipelineSettings(commands_partitions=2))))
    assert isinstance(operator, TaskOperator)
    assert capsys.readouterr().err == ""


def test_the_columns_are_found_by_the_offsets_that_spark_sends() -> None:
    assert layout_of([4, 1, 0, 0, 1], 1) == ((0,), 1)
    assert layout_of([5, 2, 3, 1, 7, 0], 0) == ((3, 1), 7)


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        list(ROW),
        (np.int64(1), np.bool_(True), *ROW[2:]),
        (None,) * 8,
        (True, False, 1.5, "text", b"", 2**62, -1, bytearray()),
    ],
)
def test_a_lean_state_equals_pysparks_after_every_kind_of_update(row: Any) -> None:
    stock, lean = (
        group_state(kind=kind, schema=STATE_TYPE, timeout=GroupStateTimeout.ProcessingTimeTimeout)
        for kind in (GroupState, LeanState)
    )
    for state in (stock, lean):
        state.update(row)
        state.setTimeoutDuration(3)
    assert lean.get == stock.get
    assert [type(value) for value in lean.get] == [type(value) for value in stock.get]
    assert lean.json() == stock.json()
    for state in (stock, lean):
        state.remove()
    assert lean.json() == stock.json()
    assert (lean.exists, lean.getOption) == (False, None)


class Jvm:
    """Keeps the states of clients between micro-batches, and plays Kafka for one of the paths, or for both in turn."""

    def __init__(self, *leans: bool) -> None:
        self.leans = leans
        self.rows: dict[str, tuple[Any, ...]] = {}
        self.offset = 0
        self.batches = 0
        self.answers: list[bytes] = []

    def cell(self, source: int, value: bytes, **headers: bytes) -> bytes:
        self.offset += 1
        return cell(source, self.offset, value, **headers)

    def micro_batch(self, cells: dict[str, tuple[bytes, ...]], *, batch_rows: int = 11) -> list[Any]:
        """Returns the gateway commands."""
        lean = self.leans[self.batches % len(self.leans)]
        self.batches += 1
        settings = PipelineSettings(commands_partitions=1, lean_worker=lean)
        given = [Given(key, part, self.rows.get(key)) for key, part in cells.items()]
        self.answers.append(Task(SessionOperator(settings)).run(arrow_stream(given, batch_rows)))
        answer = read_answer(self.answers[-1])
        for state in answer.states:
            key = state["keyRowAsUnsafe"].removeprefix(b"unsafe:").decode()
            if state["object"] is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = pickle.loads(state["object"])
        batches = [row["value"] for row in answer.rows if row["topic"] == "inflight.commands"]
        return [(batch.client_id, c) for batch in map(decode_command_batch, batches) for c in batch.commands]

    def run(self) -> None:
        clients = [f"client-{number}" for number in range(40)]
        connected = encode_event(ClientConnected(connection_id=1, commands_partition=0, clean_start=False))
        self.micro_batch({client: (self.cell(EVENTS, connected),) for client in clients})
        self.rows["damaged"] = (1, True, 1, 1, 1, NOW, NOW + 1, b"no session")
        requests = (ConnectionLost(connection_id=1), RestoreRequested(), DropRequested())
        for turn in range(3):
            sent = self.micro_batch(
                {
                    client: tuple(self.cell(MESSAGES, b"p" * n, mqtt_topic=b"t", mqtt_qos=b"1") for n in range(1 + number % 30))
                    for number, client in enumerate(clients)
                }
                | {"": (self.cell(MESSAGES, b"to nobody"),), "c": (self.cell(EVENTS, b"nonsense"),)}
                | {"damaged": (self.cell(MESSAGES, b"p", mqtt_topic=b"t"), self.cell(EVENTS, encode_event(requests[turn])))}
            )
            acks: dict[str, tuple[bytes, ...]] = {}
            for client, command in sent[turn:]:
                event = encode_event(PubAckReceived(connection_id=1, packet_id=command.packet_id))
                acks[client] = (*acks.get(client, ()), self.cell(EVENTS, event))
            self.micro_batch(acks)
            call = encode_event(DeadlineReached())
            self.micro_batch({client: (self.cell(EVENTS, call),) for client in list(self.rows)[::3]})


def test_sessions_answer_the_same_on_both_paths_and_when_the_paths_change() -> None:
    stock, lean, mixed = Jvm(False), Jvm(True), Jvm(True, False, False, True)
    for jvm in (stock, lean, mixed):
        jvm.run()
    assert len(stock.answers) == 10
    assert lean.answers == stock.answers
    assert mixed.answers == stock.answers
    assert lean.rows == stock.rows == mixed.rows
    assert stock.rows["damaged"][:4] == (1, False, 0, 1), (
        "quarantined, not restored, dropped: a new session with the last message"
    )
