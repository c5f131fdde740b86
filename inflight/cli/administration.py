"""Implements the commands that check and prepare: `topics`, `jars`, `config`."""

from typing import TYPE_CHECKING, Annotated

import typer

from inflight.cli.options import Config, DataDir, Overrides, load, load_for_running_system
from streaming.terminal import say, write_table

if TYPE_CHECKING:
    from streaming.topics import TopicReport


def topics(
    config: Config = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    check: Annotated[bool, typer.Option("--check", help="Only check; create nothing.")] = False,
) -> None:
    """Create missing topics and check all of them. Exit code 1 if one would lose data."""
    from inflight.cli.kafka_contact import require_kafka
    from streaming.config.errors import UnsafeTopics
    from streaming.topics import check_topics, ensure_topics

    settings = load_for_running_system(config, overrides, data_dir)
    require_kafka(settings.kafka.bootstrap_servers)
    report = check_topics(settings) if check else ensure_topics(settings)
    _print_topics(report)
    if report.problems:
        raise UnsafeTopics(report.problems)


def jars(
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    background: Annotated[bool, typer.Option("--background", hidden=True, help="Give way to every other process.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="Print only the value for `spark-submit --jars`.")] = False,
) -> None:
    """Fetch the jars of Spark's connectors and of Kafka into the cache, and prepare quick starts. Quick if all is cached."""
    from inflight.local.child_process import lower_priority
    from inflight.local.class_data_sharing import ensure_class_archives
    from inflight.local.jars import ensure_jars

    if background:
        lower_priority(19)
    found = ensure_jars(progress=not quiet)
    ensure_class_archives(found, say=lambda text: None if quiet else say(text, err=True))
    if spark:
        say(",".join(str(jar) for jar in found.spark))
    elif not quiet:
        say(f"{len(found.spark) + 1} jars for Spark and {len(found.kafka)} for Kafka in {found.local_fs.parent.parent}")


def config(
    file: Config = None,
    overrides: Overrides = None,
    comments: Annotated[bool, typer.Option(help="Add the meaning of each key.")] = False,
) -> None:
    """Show the configuration in force as TOML, without secrets."""
    from streaming.config.explain import render_toml

    say(render_toml(load(file, overrides), comments=comments).rstrip("\n"))


def _print_topics(report: "TopicReport") -> None:
    from streaming.config.units import format_duration

    rows = []
    for topic in report.topics:
        compacted = "compact" in topic.configs.get("cleanup.policy", "")
        keeps = "latest per client" if compacted else format_duration(int(topic.configs.get("retention.ms", "-1")))
        name = topic.name + (" (new)" if topic.name in report.created else "")
        name += " (now LogAppendTime)" if topic.name in report.repaired else ""
        rows.append((name, topic.partitions, topic.replication_factor, keeps, topic.configs.get("max.message.bytes", "?")))
    write_table(("topic", "partitions", "replicas", "keeps", "largest record"), rows)
    for warning in report.warnings:
        say(f"warning: {warning}")
