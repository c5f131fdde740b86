"""Mosquitto, as its package comes from Debian, with and without persistence.

Set are: the port, and that clients need no password; that a session may queue any number of messages (max_queued_messages 0: with
its 1,000 it would drop what the one backend of the uplink has not read yet); and the user, since Mosquitto would change to one
that may not write to our directory. All else is as it comes: 20 messages in flight for a client, Nagle's algorithm, its log.
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
    """Without persistence. When it ends, all sessions and messages are gone."""

    title: ClassVar[str] = "Mosquitto, in memory"
    persistence: ClassVar[str] = "persistence false\n"

    @staticmethod
    def version() -> str:
        # It ends with status 3 when it is asked for help, and its help begins with the version.
        said = subprocess.run([find_mosquitto(), "-h"], check=False, capture_output=True, text=True, timeout=10.0).stdout
        return said.partition("\n")[0].removeprefix("mosquitto version ")

    def start(self) -> None:
        host, port = self.mqtt
        conf = self.directory / "mosquitto.conf"
        text = _CONF.format(host=host, port=port, user=getpass.getuser()) + self.persistence
        conf.write_text(text.format(directory=self.directory), encoding="utf-8")
        self.run("mosquitto", [find_mosquitto(), "-c", str(conf)])


class MosquittoPersistent(MosquittoInMemory):
    """With persistence. It acknowledges a message when it has it in memory, and never writes a single one to the disk.

    It writes its whole database, sessions and unacknowledged messages, at intervals and when it is stopped: with
    `autosave_interval 1` whenever more than one second has passed since the last time, in the loop that serves the clients, as it
    has no other thread. What it has acknowledged since then is lost when it is killed. The interval is 30 minutes if it is not
    set, which would be no persistence for as long as this runs. `autosave_on_changes true` would count changes in place of
    seconds: with 1 it would write the whole database for each message, with more the last changes might never be written.
    """

    title: ClassVar[str] = "Mosquitto, persistent"
    persistence: ClassVar[str] = "persistence true\npersistence_location {directory}/\nautosave_interval 1\n"
