"""Files that say who may connect and cannot be used. The text ends with what to do."""

from state.errors import InflightError


class UnusableFile(InflightError):
    """A password file, a key or a certificate that cannot be read, or says something that cannot be meant."""
