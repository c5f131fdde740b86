"""Runs Mosquitto from its Debian package, with and without persistence.

The benchmark sets the port, access without passwords, and the user, because Mosquitto would change to one that may not write to
the directory. A session may queue any number of messages (max_queued_messages 0). With the default of 1,000 it would drop
publications that the one backend of the uplink has not read yet. The rest is default: 20 messages in flight for a client, Nagle's
algorithm, the log.
"""

import getpass
import subprocess
from typing import ClassVar

from bench.contestants.broker import Broker
from tests.support.mosquitto import find_mosquitto

_CONF = """\
listener {port} {host}
allow_anonymous true
user {user}
max_queued_messages 0
"""


class MosquittoInMemory(Broker):
    """Mosquitto without persistence. All sessions and messages are lost at its end."""

    title: ClassVar[str] = "Mosquitto, in memory"
    keeps_sessions: ClassVar[bool] = False
    persistence: ClassVar[str] = "persistence false\n"

    @staticmethod
    def version() -> str:
        # Its help ends with status 3 and begins with the version.
        said = subprocess.run([find_mosquitto(), "-h"], check=False, capture_output=True, text=True, timeout=10.0).stdout
        return said.partition("\n")[0].removeprefix("mosquitto version ")

    def start(self) -> None:
        host, port = self.mqtt
        conf = self.directory / "mosquitto.conf"
        text = _CONF.format(host=host, port=port, user=getpass.getuser()) + self.persistence
        conf.write_text(text.format(directory=self.directory), encoding="utf-8")
        self.run("mosquitto", [find_mosquitto(), "-c", str(conf)])


class MosquittoPersistent(MosquittoInMemory):
    """Mosquitto with persistence. It acknowledges a message in memory, and never writes a single one to the disk.

    It writes its whole database, sessions and unacknowledged messages, at intervals and when it is stopped. With
    `autosave_interval 1` it writes whenever more than one second has passed since the last time. It does so in the loop that
    serves the clients, because it has no other thread. A kill loses the messages acknowledged since then. The default
    interval is 30 minutes, which would be no persistence within this run. `autosave_on_changes true` would count changes
    instead of seconds. With 1 it would write the whole database for each message. With more, the last changes might never be
    written.
    """

    title: ClassVar[str] = "Mosquitto, persistent"
    keeps_sessions: ClassVar[bool] = True
    persistence: ClassVar[str] = "persistence true\npersistence_location {directory}/\nautosave_interval 1\n"
