"""Which changes of the configuration a gateway takes while it runs.

What it lets devices do, and the engine's session settings, by which it answers some CONNECTs. The rest is wired into its
listeners and its Kafka clients.
"""

from collections.abc import Callable
from typing import Final

import structlog

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.settings import GatewaySettings
from streaming.config.settings import Settings, gateway_settings
from streaming.reload.changed_keys import changed_keys, with_reloaded

_log: Final = structlog.get_logger(__name__)
AT_START: Final = ("kafka", "topics", "gateway", "listeners", "fast_path", "metrics")
"""Tables in which a gateway needs a restart for what it does not reload. All others are of other processes."""


class GatewayReload:
    """settings: in force now. new: other ones, or None; asked at each `look` (see ConfigurationWatch.changed). ask: has `new`
    read the file the next time, whether it has changed or not."""

    def __init__(self, settings: Settings, *, new: Callable[[], Settings | None], ask: Callable[[], None]) -> None:
        self._settings = settings
        self._new = new
        self._ask = ask

    def look(self, take: Callable[[GatewaySettings], None], *, read_file: bool = False) -> None:
        """See sinks.mqtt.process.Configuration."""
        if read_file:
            self._ask()
        new = self._new()
        if new is not None:
            self._take(new, take)

    def _take(self, new: Settings, take: Callable[[GatewaySettings], None]) -> None:
        in_force = self._settings
        taken = with_reloaded(in_force, new, "gateway")
        if needs_restart := [key for key in _differences(taken, new) if key.partition(".")[0] in AT_START]:
            _log.warning("settings_need_a_restart", keys=needs_restart, action="until then the old values hold")
        changed = _differences(in_force, taken)
        if not changed:
            _log.info("settings_unchanged")
            return
        try:
            take(gateway_settings(taken))
        except UnusableFile as error:
            _log.error("settings_not_taken", problems=str(error), action="then save the file again, or send SIGHUP")
            return
        self._settings = taken
        _log.info("settings_changed", keys=changed)


def _differences(old: Settings, new: Settings) -> list[str]:
    return changed_keys(old.model_dump(), new.model_dump())
