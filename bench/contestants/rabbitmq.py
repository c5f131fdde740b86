"""Runs RabbitMQ with its MQTT plugin, from its Debian package.

Sessions are kept. So the messages of each device are in a durable queue of its own (a classic one, the plugin's default), and
messages at QoS 1 are persistent: it sends PUBACK when its queues have confirmed the message. It has no QoS 2: it grants QoS 1 to
such subscriptions. Prefetch, memory, log and schedulers are default. Erlang's schedulers search for work before they sleep, which
counts as its processor time.

There are two processes, with their own ports, data and Erlang cookie: the broker (`beam`), and epmd, Erlang's port mapper,
which the broker would otherwise leave behind as a daemon.
"""

import os
import shutil
from pathlib import Path
from typing import ClassVar

from bench.contestants.broker import HOST, Broker
from inflight.local.child_process import free_port
from inflight.local.errors import MissingPrerequisite

_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Path of the broker itself: the command of the same name on the PATH is Debian's wrapper, which changes the user."""
_LIBRARIES = Path("/usr/lib/rabbitmq/lib")
_CONF = """\
listeners.tcp = none
mqtt.listeners.tcp.1 = {host}:{port}
mqtt.allow_anonymous = true
"""


class RabbitMq(Broker):
    """RabbitMQ as a contestant.

    A client without a password is RabbitMQ's user `guest`, who may connect only from this machine.
    """

    title: ClassVar[str] = "RabbitMQ, durable"
    has_shared_subscriptions: ClassVar[bool] = False

    @staticmethod
    def version() -> str:
        found = sorted(_LIBRARIES.glob("rabbitmq_server-*"))
        if not _SCRIPT.exists() or not found or shutil.which("epmd") is None:
            raise MissingPrerequisite(
                "RabbitMQ was not found. Install it (Debian, Ubuntu: sudo apt-get install rabbitmq-server) and try again; its "
                "service need not run."
            )
        return found[-1].name.removeprefix("rabbitmq_server-")

    def start(self) -> None:
        host, port = self.mqtt
        home, conf, plugins = (self.directory / name for name in ("home", "rabbitmq.conf", "enabled_plugins"))
        home.mkdir()
        conf.write_text(_CONF.format(host=host, port=port), encoding="utf-8")
        plugins.write_text("[rabbitmq_mqtt].\n", encoding="utf-8")
        epmd_port = str(free_port(HOST))
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        environment = {
            **kept,
            "HOME": str(home),  # of its own cookie, so that it cannot reach another node
            "RABBITMQ_NODENAME": f"inflight-bench-{os.getpid()}-{port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port(HOST)),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(conf),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "no-such-file.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": epmd_port,
            "ERL_EPMD_ADDRESS": HOST,
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the broker, so its process id is the broker's
        }
        self.run("epmd", ["epmd", "-address", HOST, "-port", epmd_port], environment)
        self.run("beam", [str(_SCRIPT)], environment)
