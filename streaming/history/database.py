"""Runs DuckDB in this process for questions: no access to files, its configuration locked, memory, disk and time limited."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

import duckdb

from streaming.history.errors import BadQuestion
from streaming.history.questions import first_line

DEFAULT_TIMEOUT_S: Final = 600.0
_MEMORY: Final = "1GiB"
_DISK: Final = "20GiB"
_PORTION: Final = 1_000
_INTERRUPT_S: Final = 0.05

T = TypeVar("T")
Values: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlAnswer:
    """The answer to a question. `rows` can be read once."""

    columns: tuple[str, ...]
    rows: Iterator[Values]


class Database:
    """DuckDB for the length of a `with`.

    directory: of what does not fit into the memory limit; removed at the end.

    Methods raise BadQuestion.

    Args:
        timeout_s: How long one question may take.
    """

    def __init__(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.directory = Path(tempfile.mkdtemp(prefix="inflight-sql-"))
        self._connection = duckdb.connect(":memory:")
        self._thread = ThreadPoolExecutor(1, "inflight-sql")
        for name, value in {
            "temp_directory": f"'{self.directory}'",
            "memory_limit": f"'{_MEMORY}'",
            "max_temp_directory_size": f"'{_DISK}'",
            "TimeZone": "'UTC'",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            # Python's variables are no tables.
            "python_enable_replacements": "false",
            "enable_external_access": "false",
            "lock_configuration": "true",
        }.items():
            self._connection.execute(f"SET {name} = {value}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Ctrl-C may have come between handing over a question and waiting for it.
        self._stop(self._thread.submit(lambda: None))
        self._thread.shutdown()
        self._connection.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def register(self, name: str, rows: Any) -> None:
        """Makes an Arrow table or dataset a view."""
        self._connection.register(name, rows)

    def unregister(self, name: str) -> None:
        self._connection.unregister(name)

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[Values]:
        """Executes a statement of the program, and returns its rows."""
        return self._run(lambda: self._connection.execute(statement, list(parameters)).fetchall())

    def ask(self, question: str, parameters: Sequence[object] = ()) -> SqlAnswer:
        """Asks one question. Call it again when its rows have been read."""
        found = self._run(lambda: self._connection.execute(question, list(parameters)).description)
        return SqlAnswer(columns=tuple(str(column[0]) for column in found or ()), rows=self._rows())

    def _rows(self) -> Iterator[Values]:
        while portion := self._run(lambda: self._connection.fetchmany(_PORTION)):
            yield from portion

    def _run(self, work: Callable[[], T]) -> T:
        """Runs it on the thread of the connection: DuckDB does not notice in time that the main thread got Ctrl-C."""
        asked = self._thread.submit(work)
        try:
            return asked.result(self._timeout_s)
        except TimeoutError as error:
            self._stop(asked)
            raise BadQuestion(
                f"the answer was not there after {self._timeout_s:.0f} s: ask about fewer days, e.g. WHERE date = current_date"
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise BadQuestion(
                f"the answer needs more than {_MEMORY} of memory ({first_line(error)}): ask about fewer days or columns"
            ) from error
        except duckdb.Error as error:
            raise BadQuestion(first_line(error)) from error
        except BaseException:
            self._stop(asked)
            raise

    def _stop(self, asked: "Future[T]") -> None:
        while not asked.done():
            self._connection.interrupt()
            wait([asked], _INTERRUPT_S)
