"""The drawn structure: sizes of folders, no circle between modules, no import of a room above, which Kafka client is where."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("inflight", "streaming", "sinks", "state")
"""Top first: a room may import those to its right."""
FEWEST_ENTRIES, MOST_ENTRIES = 3, 40
"""A folder holds what is read together: neither two files nor forty."""
SMALL = {"sinks/delta": "the one place of sinks that may import PySpark"}


def modules() -> dict[str, Path]:
    """Dotted name and file of every module of the four packages; a package is named by its folder."""
    found: dict[str, Path] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported_by(path: Path) -> Iterator[str]:
    """The modules of the four packages that a file imports anywhere in it, also for type checking only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            known = name if name in MODULES else name.rpartition(".")[0]
            if known in MODULES:
                yield known


IMPORTS = {name: {target for target in imported_by(path) if target != name} for name, path in MODULES.items()}


def folders() -> list[Path]:
    return sorted({path.parent for path in MODULES.values()})


def entries(folder: Path) -> list[str]:
    """Modules and packages in a folder. `__init__.py` and data files are not counted."""
    modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    packages = [path.name for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    return sorted(modules + packages)


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_holds_neither_two_files_nor_forty(folder: Path) -> None:
    is_small = len(entries(folder)) < FEWEST_ENTRIES
    assert is_small == (str(folder.relative_to(ROOT)) in SMALL), entries(folder)
    assert len(entries(folder)) < MOST_ENTRIES, entries(folder)


def test_no_room_imports_one_above_it() -> None:
    rank = {room: place for place, room in enumerate(ROOMS)}
    up = [
        f"{name} imports {target}"
        for name, targets in IMPORTS.items()
        for target in sorted(targets)
        if rank[target.partition(".")[0]] < rank[name.partition(".")[0]]
    ]
    assert up == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checking count too, because a reader follows those arrows as well."""
    assert circles(IMPORTS) == []


WAITED_FOR = (
    "sinks.mqtt",
    "sinks.bridge",
    "sinks.fast_path",
    "sinks.routing",
    "sinks.host",
    "inflight.producer",
    "inflight.presence",
    "inflight.readers",
)
"""Devices or backends wait for these: gateway, bridge, router, matcher, Producer, Presence, readers (decision 28)."""


BACKENDS = ("inflight.producer", "inflight.presence", "inflight.readers")
"""Packages that a backend imports."""


def homes_of_classes(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Returns the files that define a class of each name."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path.name)
    return homes


def test_no_two_classes_share_a_name() -> None:
    assert {name: files for name, files in homes_of_classes(MODULES.values()).items() if len(files) > 1} == {}


def test_a_shared_name_would_be_found(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("class Outbound:\n    pass\n")
    assert homes_of_classes(sorted(tmp_path.iterdir())) == {"Outbound": ["a.py", "b.py"]}


def test_librdkafka_is_where_a_device_or_a_backend_waits() -> None:
    reached = reach(IMPORTS, {name for name in MODULES if name.startswith(WAITED_FOR)})
    assert [name for name in sorted(reached) if "kafka" in libraries(MODULES[name])] == []


def test_kafka_python_is_where_people_and_the_driver_ask() -> None:
    asking = [name for name in MODULES if name.startswith(("inflight", "streaming")) and not name.startswith(WAITED_FOR)]
    assert [name for name in asking if "confluent_kafka" in libraries(MODULES[name])] == []


def libraries(path: Path) -> set[str]:
    """The packages that a file imports anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module is not None]
    return {name.partition(".")[0] for name in names}


def test_what_runs_in_a_backend_leaves_its_standard_output_alone() -> None:
    """structlog writes there until it is configured, which is not for a library to do."""
    reached = reach(IMPORTS, {name for name in MODULES if name.startswith(BACKENDS)})
    assert [name for name in sorted(reached) if "structlog" in libraries(MODULES[name])] == ["sinks.library_log"]


def test_nobody_waits_until_a_consumer_has_collected_records() -> None:
    reading = [path for path in MODULES.values() if "confluent_kafka" in libraries(path)]
    found = {path.name: calls for path in reading if (calls := waiting_consumes(path.read_text(encoding="utf-8")))}
    assert found == {}, "sinks.kafka.group_consumer.polled returns as soon as there is a record"


@pytest.mark.parametrize("call", ["consume(500, 0.5)", "consume(500)", "consume(num_messages=500, timeout=0.5)"])
def test_a_consumer_that_collects_records_would_be_found(call: str) -> None:
    assert waiting_consumes(f"found = client.{call}")


def waiting_consumes(source: str) -> list[str]:
    """Returns the calls of librdkafka's `consume` that wait until they have as many records as they want, or for their time."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    consumes = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "consume"]
    return [ast.unparse(call) for call in consumes if call.keywords or ast.unparse(call.args[-1]) != "0"]


def test_a_circle_would_be_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other, each sorted."""
    reached = {start: reach(arrows, arrows[start]) for start in arrows}
    groups = {tuple(sorted(b for b in arrows if b in reached[a] and a in reached[b])) for a in arrows if a in reached[a]}
    return [list(group) for group in sorted(groups)]


def reach(arrows: dict[str, set[str]], starts: set[str]) -> set[str]:
    """Returns `starts` and all that they import, directly or not."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += arrows.get(name, ())
    return seen


PRINTS = re.compile(r"""(?<![.\w])print\( | typer\.(?:echo|secho) | sys\.(?:stdout|stderr)\.write""", re.VERBOSE)
READS_MARKUP = re.compile(
    r"""\b(?:Console|Text)\( | \b(?:Live|Progress)\((?!.*console=) | rich\.markup | from_markup""", re.VERBOSE
)
"""Modules that print with a console of its own, which would read markup and emoji codes, or text that is not escaped."""


def prints(text: str) -> bool:
    """Returns True for a module that prints text without streaming/terminal.py."""
    return PRINTS.search(text) is not None or ("from rich" in text and READS_MARKUP.search(text) is not None)


PRINTING = {
    "streaming/terminal.py": "the one place that prints: it escapes, and reads neither markup nor emoji codes",
    "inflight/cli/logs.py": "writes lines that it has escaped",
    "inflight/local/set_up.py": "installs the packages, so it has none; shows what pip says",
    "inflight/local/child_process.py": "a child before its program starts; shows the name of the program",
    "inflight/producer/producer.py": "an example in a docstring",
    "streaming/engine/operator/session_operator.py": "a Python worker of Spark; escapes",
    "streaming/spark_internals/lean_worker.py": "a Python worker of Spark; shows our own text",
}
"""Files that print, with the reason."""


def test_text_from_outside_is_printed_by_one_module() -> None:
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in paths if prints(path.read_text(encoding="utf-8"))}
    assert found == set(PRINTING)


@pytest.mark.parametrize(
    "line",
    [
        "print(client_id)",
        "typer.echo(name)",
        "sys.stderr.write(text)",
        "console = Console()",
        "cell = Text(name)",
        "with Live() as x:",
    ],
)
def test_a_print_elsewhere_would_be_found(line: str) -> None:
    assert prints(f"from rich.text import Text\n    {line}\n")


DOOR_TO_SPARK = ROOT / "streaming" / "spark_internals"
PRIVATE_PARTS_OF_SPARK = re.compile(
    r"""\b_(?:jvm|jsq|jdf|jsc|jc|jconf|jwrite|jreader|jsparkSession|jvm_view)\b | \b_sc\._ | SparkContext\._
    | \bspark(?:Context|Session)?\._ | py4j | java_gateway | PYSPARK_GATEWAY | getDeclaredField | _parse_datatype
    | pyspark\.(?:daemon|serializers|sql\.pandas|util|worker)\b | from\ pyspark\ import\ .*\b(?:daemon|worker)\b
    | statestore | groupState | ["'/](?:offsets|commits)["'/] """,
    re.VERBOSE,
)
"""The JVM and its objects, PySpark's worker, and the files and rows of a checkpoint that Spark writes."""


def private_parts_in(text: str) -> list[str]:
    """Returns the lines that use a private part of Spark or PySpark."""
    return [line.strip() for line in text.splitlines() if PRIVATE_PARTS_OF_SPARK.search(line)]


def test_only_spark_internals_uses_private_parts_of_spark() -> None:
    paths = [path for room in (*ROOMS, "bench") for path in (ROOT / room).rglob("*.py") if DOOR_TO_SPARK not in path.parents]
    assert len(paths) > 300
    found = {str(path.relative_to(ROOT)): private_parts_in(path.read_text(encoding="utf-8")) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "jvm = spark._jvm",
        "query._jsq.lastProgress()",
        "rows._jdf.queryExecution()",
        "gateway = SparkContext._gateway",
        "spark._streamingCheckpointManager.repartition(location, 4)",
        "context = builder._sc._jsc.sc()",
        "from py4j.protocol import Py4JError",
        "from pyspark.sql.pandas.serializers import ArrowStreamSerializer",
        "from pyspark import SparkContext, daemon",
        'spark.read.format("statestore")',
        'planned = (checkpoint / "offsets").glob("[0-9]*")',
        'files.read(f"offsets/{batch_id}")',
    ],
)
def test_a_use_of_a_private_part_of_spark_would_be_found(line: str) -> None:
    assert private_parts_in(f"import os\n    {line}\nx = 1\n") == [line]
