"""The error of access control that an operator sees. Its text ends with what to do."""

from state.errors import InflightError


class UnusableFile(InflightError):
    """A password file, key or certificate cannot be read, or its content is invalid."""
