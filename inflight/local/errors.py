"""Errors of this machine, its ports and our child processes. Each text ends with what to do next."""

from state.errors import InflightError


class MissingPrerequisite(InflightError):
    """Something that Inflight cannot install itself is missing or too old (Java)."""


class JarsNotFetched(InflightError):
    """The jars of conf/jars.txt could not be fetched; the text has the last lines of Ivy."""


class ChildProcessFailed(InflightError):
    """A child process (Kafka, engine, gateway) ended before it was ready; the text has the end of its log."""


class DataDirectoryInUse(InflightError):
    """Another `inflight up` runs on the same data directory."""


class CannotListen(InflightError):
    """A port of ours (MQTT, metrics) is taken, or we may not use it."""
