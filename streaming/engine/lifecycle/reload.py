"""Which changes of the configuration an engine takes while it runs.

Those that say what a session does. The rest is wired into the query, its sources and its topics, or belongs to other processes.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from streaming.archive.tables import bound_tables
from streaming.config.contradictions import contradictions
from streaming.config.errors import KafkaUnreachable, UnsafeTopics
from streaming.config.settings import Settings
from streaming.config.topics import require_safe_topics
from streaming.engine.lifecycle.pipeline import pipeline_settings
from streaming.engine.operator.settings import PipelineSettings
from streaming.reload.changed_keys import changed_keys, with_reloaded

_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """settings: what is in force if this is taken. changed: the keys that differ from what was in force. needs_restart: keys that
    differ in the configuration and are not taken. problems: why it may not be taken.
    """

    settings: Settings
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]
    problems: tuple[str, ...] = ()


def reload(in_force: Settings, new: Settings) -> Reload:
    """in_force: what the engine works with; new: what the configuration says."""
    taken = with_reloaded(in_force, new, "engine")
    new_tables = {spec.name for spec in bound_tables(new)} - {spec.name for spec in bound_tables(in_force)}
    return Reload(
        settings=taken,
        changed=_differences(in_force, taken),
        # The archive makes its tables when it starts; until then these dead letters are in `dead_letters`.
        needs_restart=_differences(taken, new) + tuple(f"exchanges table:{name}" for name in sorted(new_tables)),
        # The new sessions beside the engine's old limits.
        problems=tuple(f"{'.'.join(map(str, path))} {text}" for path, text in contradictions(taken)),
    )


def _differences(old: Settings, new: Settings) -> tuple[str, ...]:
    return tuple(changed_keys(old.model_dump(), new.model_dump()))


class Query(Protocol):
    def restart(self, pipeline: PipelineSettings) -> None:
        """With other settings, from the next micro-batch on."""


class Reloader:
    """Puts new settings in force, and says in the log what becomes of them. settings: in force now.

    commands_partitions, history: of `pipeline_settings`.
    """

    def __init__(self, settings: Settings, query: Query, *, commands_partitions: int, history: str = "") -> None:
        self._settings = settings
        self._query = query
        self._pipeline_of = partial(pipeline_settings, commands_partitions=commands_partitions, history=history)

    def take(self, new: Settings) -> None:
        """Raises what a start of the query raises."""
        found = reload(self._settings, new)
        if found.needs_restart:
            _log.warning("settings_need_a_restart", keys=list(found.needs_restart), action="until then the old values hold")
        if not found.changed:
            _log.info("settings_unchanged")
            return
        if found.problems:
            _log.error("settings_not_taken", problems=list(found.problems), action="those before it stay in force")
            return
        try:
            require_safe_topics(found.settings)  # bindings may name new ones
        except (UnsafeTopics, KafkaUnreachable) as error:
            _log.error("settings_not_taken", problems=str(error), action="then save the file again, or send SIGHUP")
            return
        _log.info("settings_changed", keys=list(found.changed))
        self._query.restart(self._pipeline_of(found.settings))
        self._settings = found.settings
