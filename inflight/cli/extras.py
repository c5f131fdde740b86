"""Says which extra to install when a command misses a package (docs/decisions/0047-python-for-a-backend.md)."""

from importlib.util import find_spec
from typing import Final

from state.errors import InflightError

ENGINE_PACKAGES: Final = frozenset({"pyspark", "delta", "deltalake", "duckdb", "pandas", "pyarrow", "numpy", "xxhash"})
"""The importable names of the extra `engine`, as far as Inflight imports them."""
_TRACING_PACKAGE: Final = "opentelemetry"


class ExtraNotInstalled(InflightError):
    """The command needs a package of an extra."""

    def __init__(self, package: str) -> None:
        if package == _TRACING_PACKAGE:
            what, todo = "OpenTelemetry", "pip install 'inflight[tracing]'"
        else:
            what, todo = "the engine", "pip install 'inflight[engine]' (970 MB, and Java 17 to run it)"
        super().__init__(f"this command needs {what}, and its package {package} is not installed: {todo}")


def need_engine() -> None:
    """Raises ExtraNotInstalled before a command has started any process."""
    for package in sorted(ENGINE_PACKAGES, reverse=True):
        if find_spec(package) is None:
            raise ExtraNotInstalled(package)


def extra_not_installed(error: ModuleNotFoundError) -> ExtraNotInstalled | None:
    """Returns the error for people; None if the missing module is of no extra."""
    package = (error.name or "").partition(".")[0]
    return ExtraNotInstalled(package) if package in ENGINE_PACKAGES or package == _TRACING_PACKAGE else None
