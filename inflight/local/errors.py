"""What can go wrong around the processes: this machine, its ports, our child processes. Each text ends with what to do next."""

from state.errors import InflightError


class MissingPrerequisite(InflightError):
    """Something that Inflight cannot install itself is missing or too old (Java)."""


class JarsNotFetched(InflightError):
    """The jars of conf/ivy.xml could not be resolved; the text has the last lines of Ivy."""


class ChildProcessFailed(InflightError):
    """A child process (Kafka, engine, gateway) ended before it was ready; the text has the end of its log."""


class DataDirectoryInUse(InflightError):
    """Another `inflight up` runs on the same data directory."""


class CannotListen(InflightError):
    """A port of ours (MQTT, metrics) is taken or not ours to use."""
