"""Runs the broker in a container with the settings of its environment, as the image apache/kafka does.

KAFKA_LOG_DIRS is log.dirs: a double underscore is an underscore, a triple one a hyphen. CLUSTER_ID is the id of new storage.
"""

import os
from pathlib import Path
from typing import Final

PREFIX: Final = "KAFKA_"
NO_SETTINGS: Final = frozenset(
    {"KAFKA_HEAP_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_OPTS", "KAFKA_LOG4J_OPTS", "KAFKA_VERSION"}
)
CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
"""The default of the image apache/kafka."""


def property_name(variable: str) -> str:
    """`log.dirs` of KAFKA_LOG_DIRS."""
    name = variable.removeprefix(PREFIX).lower()
    return name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


def properties(environment: dict[str, str]) -> str:
    """Returns server.properties; each setting of the environment is a line."""
    settings = {
        property_name(variable): value
        for variable, value in sorted(environment.items())
        if variable.startswith(PREFIX) and variable not in NO_SETTINGS
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def main() -> None:
    from inflight.local.jars import ensure_jars, kafka_classpath
    from streaming.config.resources import conf_file

    file = Path("server.properties").absolute()
    file.write_text(properties(dict(os.environ)), encoding="utf-8")
    heap = os.environ.get("KAFKA_HEAP_OPTS", "-Xms256m -Xmx512m").split()
    java = [
        "java",
        *heap,
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Dlog4j2.configurationFile={conf_file('kafka-log4j2.properties').as_uri()}",
        f"-Dinflight.kafka.log={file.parent / 'kafka.log'}",
        "-cp",
        kafka_classpath(ensure_jars()),
    ]
    identity = os.environ.get("CLUSTER_ID", CLUSTER_ID)
    format_storage = [
        "kafka.tools.StorageTool",
        "format",
        f"--cluster-id={identity}",
        "--ignore-formatted",
        "--config",
        str(file),
    ]
    if code := os.spawnvp(os.P_WAIT, java[0], [*java, *format_storage]):
        raise SystemExit(code)
    os.execvp(java[0], [*java, "kafka.Kafka", str(file)])


if __name__ == "__main__":
    main()
