"""Applies a changed configuration to a running engine.

It can change what sessions do. The rest is wired into the query, its sources and its topics, or concerns other processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from streaming.config.contradictions import contradictions
from streaming.config.errors import KafkaUnreachable, UnsafeTopics
from streaming.config.settings import Settings
from streaming.engine.lifecycle.sessions_query import SessionsQuery
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.reload.changes import changed_settings, with_reloaded
from streaming.topics import require_safe_topics

_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """The result of comparing a new configuration with the settings in force.

    Attributes:
        settings: In force if this is applied.
        changed: The keys that differ from those before.
        needs_restart: Changed keys that are not applied.
        problems: Why it must not be applied.
    """

    settings: Settings
    changed: list[str]
    needs_restart: list[str]
    problems: list[str]


def reload(in_force: Settings, new: Settings) -> Reload:
    """Compares the settings of the running engine with a new configuration."""
    merged = with_reloaded(in_force, new, "engine")
    return Reload(
        settings=merged,
        changed=changed_settings(in_force, merged),
        needs_restart=changed_settings(merged, new),
        # The new session settings beside the engine's old limits.
        problems=[f"{'.'.join(map(str, path))} {text}" for path, text in contradictions(merged)] + _lost_owners(in_force, new),
    )


def _lost_owners(in_force: Settings, new: Settings) -> list[str]:
    """Names policies that would be free of [[permissions]] because a file, perhaps a half-written one, has no owner for them."""
    owned = {policy.name for policy in in_force.policies if policy.owner}
    return [
        f"policies[{number}].owner is gone: {policy.name!r} could write to every exchange; restart the engine if it is meant"
        for number, policy in enumerate(new.policies)
        if policy.name in owned and not policy.owner
    ]


class Reloader:
    """Puts new settings in force, and logs what becomes of them.

    Args:
        settings: In force now.
        pipeline_of: Makes the settings of the query.
    """

    def __init__(self, settings: Settings, query: SessionsQuery, pipeline_of: Callable[[Settings], PipelineSettings]) -> None:
        self._settings = settings
        self._query = query
        self._pipeline_of = pipeline_of

    def reconfigure(self, new: Settings | None) -> None:
        """Applies new settings, if there are any. Raises what a start of the query raises."""
        if new is None:
            return
        found = reload(self._settings, new)
        if found.needs_restart:
            _log.warning("settings_need_a_restart", keys=found.needs_restart, action="until then the old values hold")
        if not found.changed:
            _log.info("settings_unchanged")
            return
        if found.problems:
            _log.error("settings_not_taken", problems=found.problems, action="those before it stay in force")
            return
        try:
            require_safe_topics(found.settings)  # bindings may name new topics
        except (UnsafeTopics, KafkaUnreachable) as error:
            _log.error("settings_not_taken", problems=str(error), action="then save the file again, or send SIGHUP")
            return
        _log.info("settings_changed", keys=found.changed)
        self._query.restart(self._pipeline_of(found.settings))
        self._settings = found.settings
