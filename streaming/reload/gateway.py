"""Applies a changed configuration to a running gateway.

It can change what devices may do, and the engine's session settings, by which it answers some CONNECTs. The rest is wired into
its listeners and its Kafka clients.
"""

from collections.abc import Callable
from typing import Final

import structlog

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.settings import GatewaySettings
from streaming.config.settings import Settings, gateway_settings
from streaming.reload.access import lost_access_control
from streaming.reload.changes import changed_settings, with_reloaded

_log: Final = structlog.get_logger(__name__)
AT_START: Final = ("kafka", "topics", "gateway", "listeners", "fast_path", "routing", "metrics")
"""Tables in which a gateway needs a restart for keys that it does not reload. All others concern other processes."""


class GatewayReload:
    """The settings of a running gateway."""

    def __init__(self, settings: Settings, *, new: Callable[[], Settings | None], ask: Callable[[], None]) -> None:
        """
        Args:
            settings: In force now.
            new: Returns other settings, or None; called at each `poll` (see ConfigurationWatch.changed).
            ask: Makes the next `new` read the file even if it has not changed.
        """
        self._settings = settings
        self._new = new
        self._ask = ask

    def poll(self, apply: Callable[[GatewaySettings], None], *, read_file: bool = False) -> None:
        """Passes changed settings to `apply`; see sinks.mqtt.process.SettingsSource."""
        if read_file:
            self._ask()
        new = self._new()
        if new is not None:
            self._reconfigure(new, apply)

    def _reconfigure(self, new: Settings, apply: Callable[[GatewaySettings], None]) -> None:
        in_force = self._settings
        if lost := lost_access_control(in_force, new):
            _log.error("settings_not_taken", problems=lost, action="write them again; if it is meant so, restart the gateway")
            return
        changed_now = with_reloaded(in_force, new, "gateway")
        if needs_restart := [key for key in changed_settings(changed_now, new) if key.partition(".")[0] in AT_START]:
            _log.warning("settings_need_a_restart", keys=needs_restart, action="until then the old values hold")
        changed = changed_settings(in_force, changed_now)
        if not changed:
            _log.info("settings_unchanged")
            return
        try:
            apply(gateway_settings(changed_now))
        except UnusableFile as error:
            _log.error("settings_not_taken", problems=str(error), action="then save the file again, or send SIGHUP")
            return
        self._settings = changed_now
        _log.info("settings_changed", keys=changed)
