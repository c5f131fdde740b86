"""Why a question has no answer. Each text ends with what to do."""

from state.errors import InflightError


class NoArchive(InflightError):
    """There are no tables where they should be."""


class BadQuestion(InflightError):
    """SQL that Spark refuses; the text has its reason."""


class NothingFound(InflightError):
    """Nobody has heard of what was asked for."""
