"""streaming.spark_internals.state_schema on a local checkpoint, with the file that PySpark 4.2.0 writes."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from streaming.spark_internals.checkpoint import CheckpointFiles
from streaming.spark_internals.state_schema import drop_time_outs

LONGEST_BYTES = 65_535
"""Returns a string as `java.io.DataOutput` writes it."""


def field(name: str, kind: object) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def as_json(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


KEY = as_json(field("client_id", "string"))
TIME_OUT = field("timeoutTimestamp", "long")
ROW = field("groupState", {"type": "struct", "fields": [field("version", "integer"), field("timeoutTimestamp", "long")]})
"""The state row. A column of it is not the time-out, whatever its name is."""


def utf(text: str) -> bytes:
    """Does what `DataOutput.writeUTF` does with ASCII."""
    return struct.pack(">H", len(text)) + text.encode("ascii")


def text_in_pieces(text: str, piece: int = LONGEST_BYTES) -> bytes:
    pieces = [text[start : start + piece] for start in range(0, len(text), piece)]
    return struct.pack(">i", len(pieces)) + b"".join(map(utf, pieces))


def schema(key: str, value: str, *, version: str = "v2", piece: int = LONGEST_BYTES) -> bytes:
    return utf(version) + text_in_pieces(key, piece) + text_in_pieces(value, piece)


OLD, NEW = schema(KEY, as_json(ROW, TIME_OUT)), schema(KEY, as_json(ROW))


class SchemaFile:
    """The file in a checkpoint, its checksum by Hadoop, and the events of the log."""

    def __init__(self, checkpoint: Path, data: bytes) -> None:
        self.path = checkpoint / "state/0/0/_metadata/schema"
        self.crc = self.path.with_name(".schema.crc")
        self.path.parent.mkdir(parents=True)
        self.path.write_bytes(data)
        self.crc.write_bytes(b"crc\0")
        self.files = CheckpointFiles(None, str(checkpoint))

    def drop(self) -> list[tuple[str, str]]:
        """Returns level and event of each line in the log."""
        with capture_logs() as lines:
            drop_time_outs(self.files)
        assert all(line["file"] == str(self.path) for line in lines)
        return [(line["log_level"], line["event"]) for line in lines]

    def is_untouched(self, data: bytes) -> bool:
        names = sorted(path.name for path in self.path.parent.iterdir())
        return self.path.read_bytes() == data and names == [".schema.crc", "schema"]


def test_the_time_out_goes_and_nothing_else(tmp_path: Path) -> None:
    file = SchemaFile(tmp_path, OLD)
    assert file.drop() == [("info", "state_without_time_outs")]
    assert file.path.read_bytes() == NEW


def test_the_checksum_of_the_old_file_goes_with_it(tmp_path: Path) -> None:
    file = SchemaFile(tmp_path, OLD)
    file.drop()
    assert [path.name for path in file.path.parent.iterdir()] == ["schema"]


def test_the_order_of_the_fields_does_not_matter(tmp_path: Path) -> None:
    file = SchemaFile(tmp_path, schema(KEY, as_json(TIME_OUT, ROW)))
    file.drop()
    assert file.path.read_bytes() == NEW


def test_a_repeated_call_changes_nothing(tmp_path: Path) -> None:
    file = SchemaFile(tmp_path, OLD)
    file.drop()
    file.crc.write_bytes(b"crc\0 by Spark")
    assert file.drop() == []
    assert file.is_untouched(NEW)


def test_a_schema_without_a_time_out_is_left_as_spark_wrote_it(tmp_path: Path) -> None:
    data = schema(KEY, json.dumps(json.loads(as_json(ROW)), indent=1), piece=100)
    file = SchemaFile(tmp_path, data)
    assert file.drop() == []
    assert file.is_untouched(data)


def test_a_missing_file_is_left_missing(tmp_path: Path) -> None:
    with capture_logs() as lines:
        drop_time_outs(CheckpointFiles(None, str(tmp_path)))
    assert lines == []
    assert [*tmp_path.iterdir()] == []


def test_texts_longer_than_a_piece_are_read_and_written_in_pieces(tmp_path: Path) -> None:
    fields = [field(f"column_{number}", "string") for number in range(3_000)]
    row, key = field("groupState", {"type": "struct", "fields": fields}), as_json(*fields)
    assert len(as_json(row)) > 2 * LONGEST_BYTES
    file = SchemaFile(tmp_path, schema(key, as_json(row, TIME_OUT)))
    file.drop()
    assert file.path.read_bytes() == schema(key, as_json(row))
    assert file.drop() == []


@pytest.mark.parametrize("key_bytes", [LONGEST_BYTES - 1, LONGEST_BYTES, LONGEST_BYTES + 1, 2 * LONGEST_BYTES])
def test_a_text_of_about_one_piece_is_kept(tmp_path: Path, key_bytes: int) -> None:
    key = KEY.replace("client_id", "c" * (key_bytes - len(KEY) + len("client_id")))
    assert len(key) == key_bytes
    file = SchemaFile(tmp_path, schema(key, as_json(ROW, TIME_OUT)))
    file.drop()
    assert file.path.read_bytes() == schema(key, as_json(ROW))


def test_shorter_pieces_than_ours_are_read(tmp_path: Path) -> None:
    file = SchemaFile(tmp_path, schema(KEY, as_json(ROW, TIME_OUT), piece=7))
    file.drop()
    assert file.path.read_bytes() == NEW


def test_a_file_that_was_cut_anywhere_is_left_alone(tmp_path: Path) -> None:
    file = SchemaFile(tmp_path, b"")
    for end in range(len(OLD)):
        file.path.write_bytes(OLD[:end])
        assert file.drop() == [("warning", "state_schema_unknown")], end
        assert file.is_untouched(OLD[:end]), end


@pytest.mark.parametrize(
    "data",
    [
        schema(KEY, as_json(ROW, TIME_OUT), version="v3"),
        schema(KEY, as_json(ROW, TIME_OUT), version="v1"),
        utf("v1") + utf(KEY) + utf(as_json(ROW, TIME_OUT)),
        OLD + b"\0",
    ],
    ids=["v3 as v2", "v1 as v2", "v1", "longer"],
)
def test_a_file_of_another_version_is_left_alone(tmp_path: Path, data: bytes) -> None:
    file = SchemaFile(tmp_path, data)
    assert file.drop() == [("warning", "state_schema_unknown")]
    assert file.is_untouched(data)


@pytest.mark.parametrize(
    "value",
    ["", "{", "{}", "[]", "7", "null", '"text"', '{"fields":null}', '{"fields":7}', '{"fields":[{}]}', '{"fields":["name"]}'],
)
def test_a_value_that_is_no_schema_is_left_alone(tmp_path: Path, value: str) -> None:
    file = SchemaFile(tmp_path, schema(KEY, value))
    assert file.drop() == [("warning", "state_schema_unknown")]
    assert file.is_untouched(schema(KEY, value))


@pytest.mark.parametrize(
    "data",
    [b"\0" * 64, b"\xff" * 64, b"\0\2v2" + b"\xff" * 64, b"\0\2v2" + b"\x7f" * 64, b"\0\2\xff\xfe" + OLD[4:], b"text"],
    ids=["zeros", "ones", "pieces below zero", "billions of pieces", "no UTF-8", "text"],
)
def test_garbage_is_left_alone(tmp_path: Path, data: bytes) -> None:
    file = SchemaFile(tmp_path, data)
    assert file.drop() == [("warning", "state_schema_unknown")]
    assert file.is_untouched(data)
