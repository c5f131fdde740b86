"""Says what to install when a command needs packages of the extra `inflight[engine]`.

docs/decisions/0047-python-for-a-backend.md says what is in it.
"""

from importlib.util import find_spec
from typing import Final

from state.errors import InflightError

ENGINE_PACKAGES: Final = frozenset({"pyspark", "delta", "deltalake", "pandas", "pyarrow", "numpy", "matplotlib"})
"""The importable names of the extra, as far as Inflight imports them."""


class EngineNotInstalled(InflightError):
    """The command needs a package of the extra `engine`."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"this command needs the engine, and its package {package} is not installed: "
            "pip install 'inflight[engine]' (900 MB, and Java 17 to run it)"
        )


def need_engine() -> None:
    """Raises EngineNotInstalled before a command has started any process."""
    for package in sorted(ENGINE_PACKAGES, reverse=True):
        if find_spec(package) is None:
            raise EngineNotInstalled(package)


def engine_not_installed(error: ModuleNotFoundError) -> EngineNotInstalled | None:
    """Returns the error for people; None if the missing module is none of the extra."""
    package = (error.name or "").partition(".")[0]
    return EngineNotInstalled(package) if package in ENGINE_PACKAGES else None
