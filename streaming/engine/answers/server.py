"""Answers questions about the sessions, so that a command of the same user needs no Spark of its own.

An HTTP server on loopback, in the engine's driver. It answers whoever has the token of DATA_DIR/answers.json, one question at a
time, from the newest committed state. A question reads every session once, and micro-batches are slower meanwhile.

| path | answer |
|---|---|
| `/sessions?limit=N&prefix=TEXT` | `stats`: of all sessions; `sessions`: those with the longest queues |
| `/rows?limit=N` | a list: sessions in no order |
| `/client?id=CLIENT` | a list: the session with its stored form, or nothing |
| `/quarantined` | the ids of quarantined clients |
"""

import secrets
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

import msgspec
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.engine.answers.address import AnswersAddress
from streaming.engine.answers.asking import LOOPBACK
from streaming.engine.session_rows import json_documents, longest_queues, session_rows
from streaming.engine.watching.session_stats import collect_session_stats
from streaming.spark_internals.jvm import SPARK_ERRORS

_log: Final = structlog.get_logger(__name__)
_JOB_GROUP: Final = "inflight-answers"
_REQUEST_S: Final = 5.0
_JOIN_S: Final = 5.0
_MAX_ROWS: Final = 100_000


class SessionQuestions:
    """Asks Spark, one question at a time, all on one thread: PySpark keeps a thread of the JVM for each that ever asked."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._pool = ThreadPoolExecutor(1, "inflight-answers")

    def answer(self, path: str, parameters: dict[str, str]) -> bytes | None:
        """Returns JSON, or None for an unknown path. Raises SPARK_ERRORS, and ValueError for a limit that is no number."""
        return self._pool.submit(self._answer, path, parameters).result()

    def close(self) -> None:
        """Cancels what is asked."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._spark.sparkContext.cancelJobGroup(_JOB_GROUP)

    def _answer(self, path: str, parameters: dict[str, str]) -> bytes | None:
        self._spark.sparkContext.setJobGroup(_JOB_GROUP, f"a question: {path}", interruptOnCancel=True)
        match path:
            case "/sessions":
                limit = min(int(parameters.get("limit", "50")), _MAX_ROWS)
                found = longest_queues(self._rows(), limit=limit, prefix=parameters.get("prefix", ""))
                stats = collect_session_stats(self._spark, self._checkpoint)
                return msgspec.json.encode({"stats": stats, "sessions": _documents(found)})
            case "/rows":
                limit = min(int(parameters.get("limit", "50")), _MAX_ROWS)
                return msgspec.json.encode(_documents(self._rows().limit(limit)))
            case "/client":
                rows = self._rows(blobs=True).where(F.col("client_id") == F.lit(parameters.get("id", "")))
                return msgspec.json.encode(_documents(rows.limit(1)))
            case "/quarantined":
                ids = self._rows().where("quarantined").select("client_id").orderBy("client_id").collect()
                return msgspec.json.encode([row["client_id"] for row in ids])
            case _:
                return None

    def _rows(self, *, blobs: bool = False) -> DataFrame:
        return session_rows(self._spark, self._checkpoint, blobs=blobs)


def _documents(rows: DataFrame) -> list[msgspec.Raw]:
    return [msgspec.Raw(row["document"].encode()) for row in json_documents(rows).collect()]


class AnswerServer:
    """Serves from `start` to the end of a `with`. A failure to start is logged: commands then read the checkpoint themselves."""

    def __init__(self, questions: SessionQuestions, data_dir: Path, checkpoint: str) -> None:
        self._questions = questions
        self._data_dir = data_dir
        self._checkpoint = checkpoint
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, spark: SparkSession, data_dir: Path, checkpoint: str) -> Self:
        return cls(SessionQuestions(spark, checkpoint), data_dir, checkpoint)

    def start(self) -> None:
        """Call it after the first micro-batch: before, there is no state to read."""
        token = secrets.token_urlsafe(32)
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, 0), _handler(self._questions, token))
            self._server.daemon_threads = True
            address = AnswersAddress(port=self._server.server_port, token=token, checkpoint=self._checkpoint)
            address.write(self._data_dir)
        except OSError as error:
            _log.warning("no_answers", error=repr(error), action="`inflight sessions` and `inflight client` start Spark instead")
            return
        self._thread = threading.Thread(target=self._server.serve_forever, name="inflight-answers", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._server is None:
            return
        AnswersAddress.remove(self._data_dir)
        if self._thread is not None:
            self._questions.close()
            self._server.shutdown()
            self._thread.join(_JOIN_S)
        self._server.server_close()


def _handler(questions: SessionQuestions, token: str) -> type[BaseHTTPRequestHandler]:
    expected = f"Bearer {token}".encode()

    class AnswerHandler(BaseHTTPRequestHandler):
        """Answers one request. Its connection is closed if it does not send the request in time."""

        timeout = _REQUEST_S

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "").encode(errors="replace")
            if not secrets.compare_digest(given, expected):
                self._send(HTTPStatus.FORBIDDEN, b"")
                return
            parts = urlsplit(self.path)
            parameters = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            try:
                body = questions.answer(parts.path, parameters)
            except ValueError:
                self._send(HTTPStatus.BAD_REQUEST, b"")
            except (*SPARK_ERRORS, CancelledError, RuntimeError) as error:  # the last two: the engine stops
                _log.warning("question_failed", path=parts.path, error=repr(error)[:500], action="the command asks Spark itself")
                self._send(HTTPStatus.SERVICE_UNAVAILABLE, b"")
            else:
                self._send(HTTPStatus.NOT_FOUND if body is None else HTTPStatus.OK, body or b"")

        def log_message(self, *_: object) -> None:
            """Writes no access log."""

        def _send(self, status: HTTPStatus, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return AnswerHandler
