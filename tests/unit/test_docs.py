"""The documents tell the truth: what they name exists, what is generated is fresh, nothing outside the repository is cited."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from docs.generate.facts import facts_in, written_pages
from docs.generate.files import stale
from inflight.cli import app
from sinks.mqtt.connection.fast_path import OfferHold, OfferRefusal

ROOT = Path(__file__).parent.parent.parent
COMPLIANCE = ROOT / "docs" / "project" / "spec_compliance.md"
PROTOCOL = ROOT / "docs" / "reference" / "protocol.md"
ARCHITECTURE = ROOT / "docs" / "how" / "architecture.md"
TAG = re.compile(r"\[MQTT-[0-9.]+-[0-9]+\]")

NOT_IN_THE_REPOSITORY = re.compile(
    r"(?-i:\b(?:PROTOCOL|DESIGN|STYLE|FASTPATH|PLATFORM)(?:\.md\b|, chapter\b| §))"
    r"|\bthe seeds?\b|\bseed documents?\b|_seeds_|\bhouse (?:style|rules?)\b"
    r"|\bthe design (?:says|gives|asks|wants|has|of Inflight)\b",
    re.IGNORECASE,
)
"""Names of documents that a reader of the repository cannot open."""
CITED_SECTIONS = re.compile(r"protocol\.md`?\)?,? (?:§|sections? )(\d+)(?: (?:to|and|–) §?(\d+))?")


def text_files() -> dict[str, str]:
    """Path and text of every file that git does not ignore; of every file beneath the root where this is no checkout of git."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if path.relative_to(ROOT).parts[0] not in (".venv", ".cache", "var")]
    texts: dict[str, str] = {}
    for path in paths:
        if path.is_file():
            try:
                texts[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # fixtures of stored bytes
    return texts


TEXTS = text_files()


def compliance_rows() -> list[list[str]]:
    """(statement or case, in words, enforced in, proved by) of every row."""
    lines = [line for line in COMPLIANCE.read_text().splitlines() if line.startswith("| ")]
    lines = [line for line in lines if not line.startswith(("| statement |", "| case |"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


ROWS = compliance_rows()


def names_of_tests() -> set[str]:
    """Every test function, and every test case that a state machine is assigned to."""
    defined = re.compile(r"^ *(?:async )?(?:def|class) ([Tt]est_?\w+)|^(Test\w+): ", re.MULTILINE)
    found = [defined.findall(path.read_text()) for room in ("tests", "trials") for path in (ROOT / room).rglob("*.py")]
    return {name for names in found for pair in names for name in pair if name}


NAMES = names_of_tests()


def test_the_table_has_its_four_columns_and_no_statement_twice() -> None:
    assert len(ROWS) > 150
    assert all(len(row) == 4 for row in ROWS), [row for row in ROWS if len(row) != 4]
    statements = [row[0] for row in ROWS]
    assert sorted(set(statements)) == sorted(statements)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("[]"))
def test_what_a_row_names_exists_and_carries_the_statement(row: list[str]) -> None:
    statement, _, enforced_in, proved_by = row
    tests = re.findall(r"`(test_\w+|Test\w+)`", proved_by)
    assert set(tests) <= NAMES, "names a test that does not exist"
    if enforced_in == "—":
        assert proved_by.startswith("not applicable: "), "say why it is not applicable"
        return
    assert tests, "names no test"
    paths = re.findall(r"`([\w/]+\.py)`", enforced_in)
    assert ", ".join(f"`{path}`" for path in paths) == enforced_in, "names something else than modules"
    for path in paths:
        assert (ROOT / path).is_file(), f"{path} does not exist"
        if statement.startswith(("[MQTT", "MQTT 5,")):
            assert statement in (ROOT / path).read_text(), f"{path} does not carry {statement} at the line that enforces it"


def test_every_tag_in_the_code_has_its_row() -> None:
    """A statement that the session, the gateway or the bridge claims to keep is traced."""
    listed = {tag for row in ROWS for tag in TAG.findall(" ".join(row))}
    modules = sorted((ROOT / "state").rglob("*.py")) + sorted((ROOT / "sinks").rglob("*.py"))
    # A number of MQTT 3.1.1 has these words behind it.
    claimed = {tag for path in modules for tag in TAG.findall(re.sub(rf"{TAG.pattern} of MQTT 3.1.1", "", path.read_text()))}
    assert claimed <= listed, sorted(claimed - listed)


@pytest.mark.promise("pages")
def test_every_generated_page_is_that_of_the_code() -> None:
    assert list(stale()) == [], "run `make references`"


def test_facts_of_a_page_are_found_wherever_they_stand() -> None:
    text = """A [session](x.md) never expires while `session.max_inflight=3`. It is short.

| `inflight_gateway_connections` | `inflight up --data-dir DIR` |
|---|---|
| `inflight.events` must exist | 0x97, [MQTT-4.3.3-6] |
"""
    assert set(facts_in(text)) == {
        ("key", "session.max_inflight"),
        ("rule", "A session never expires while `session.max_inflight=3`."),
        ("metric", "inflight_gateway_connections"),
        ("command", "inflight up"),
        ("option", "--data-dir"),
        ("topic", "inflight.events"),
        ("rule", "`inflight.events` must exist"),
        ("reason code", "0x97"),
        ("statement of the standard", "[MQTT-4.3.3-6]"),
    }


def test_facts_are_those_of_written_pages_only() -> None:
    pages = written_pages()
    assert {"reference/protocol.md", "guides/producer.md", "../README.md"} <= pages.keys()
    assert not {"reference/configuration.md", "reference/commands.md", "decisions/README.md"} & pages.keys()


def test_no_file_cites_a_document_that_the_repository_does_not_have() -> None:
    """Offenders as `file:line: text`. What may be cited: docs/ and the public standards."""
    own = str(Path(__file__).relative_to(ROOT))
    assert len(TEXTS) > 200
    offenders = [
        f"{name}:{number}: {found.group()}"
        for name, text in TEXTS.items()
        if name != own
        for number, line in enumerate(text.splitlines(), start=1)
        for found in NOT_IN_THE_REPOSITORY.finditer(line)
    ]
    assert offenders == []


def test_every_section_of_the_protocol_that_a_file_cites_exists() -> None:
    sections = set(re.findall(r"^## (\d+) ", PROTOCOL.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert sections == {"1", "2", "3", "4", "5", "6", "7", "8"}
    cited = {
        (name, section)
        for name, text in TEXTS.items()
        for found in CITED_SECTIONS.finditer(text)
        for section in found.groups()
        if section is not None
    }
    assert len(cited) > 3
    assert [f"{name} cites §{section}" for name, section in sorted(cited) if section not in sections] == []


PAGES = sorted(name for name in TEXTS if name.endswith(".md"))
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as the site makes them: a repeated one gets a number."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", without_code(TEXTS[page]), flags=re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text.encode("ascii", "ignore").decode()).strip().lower())
        number = 0
        while (name := f"{slug}_{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.promise("pages")
def test_every_link_of_a_page_leads_to_a_file_and_an_anchor(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([\w-]*))?\)", without_code(TEXTS[page])):
        if "://" in target:
            continue
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in anchors(str(file.resolve().relative_to(ROOT))), f"{target}#{anchor}: no such heading"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_a_page_of_the_site_links_only_to_the_site(page: str) -> None:
    """Files of the repository are named in backticks: the site does not have them."""
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[\w-]*)?\)", without_code(TEXTS[page]))
    files = [((ROOT / page).parent / target).resolve() for target in targets if "://" not in target]
    assert [str(file) for file in files if not file.is_relative_to(ROOT / "docs")] == []


def test_every_page_in_a_folder_of_the_site_is_in_its_navigation() -> None:
    sections = ("start", "guides", "operate", "reference", "how", "project")
    pages = [page.removeprefix("docs/") for page in PAGES if page.startswith(tuple(f"docs/{section}/" for section in sections))]
    assert [page for page in pages if f" {page}\n" not in NAVIGATION] == []


def test_a_warning_of_the_site_is_an_error() -> None:
    """With `--quiet` mkdocs neither shows nor counts its warnings, and `--strict` finds none."""
    (build,) = re.findall(r"mkdocs build .*", TEXTS["Makefile"])
    assert "--strict" in build
    assert "--quiet" not in build.partition("#")[0]


def test_the_site_names_the_version_of_the_package() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', TEXTS["pyproject.toml"], flags=re.MULTILINE)
    assert re.findall(r"Inflight (\d\S*?),?(?: |$)", NAVIGATION, flags=re.MULTILINE) == [version, version]


def test_every_page_that_a_file_cites_by_its_path_exists() -> None:
    """Code, configuration and errors name pages as `docs/FOLDER/PAGE``."""
    cited = {(name, page) for name, text in TEXTS.items() for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md\b", text)}
    assert len(cited) > 50
    assert [f"{name} cites {page}" for name, page in sorted(cited) if not (ROOT / page).is_file()] == []


@pytest.mark.parametrize("page", sorted(name for name in TEXTS if name.endswith(".md") and name != "CHANGELOG.md"))
def test_every_module_that_a_page_names_exists(page: str) -> None:
    """Paths are in backticks, from the root: `state/session.py`, `streaming/engine/`. spec_compliance.md has a stricter test."""
    packages = "state|sinks|streaming|inflight|tests|trials|bench|examples|conf|docs"
    named = set(re.findall(rf"`((?:{packages})/[\w./]*)`", TEXTS[page]))
    made = "bench/results/"  # by the benchmarks
    assert sorted(name for name in named if not name.startswith(made) and not (ROOT / name).exists()) == []


MOST_WORDS = 30
FOR_NEWCOMERS = [
    page for page in PAGES if page in ("README.md", "docs/index.md") or page.startswith(("docs/start/", "docs/guides/"))
]


def sentences(text: str) -> list[str]:
    """The sentences of a page, without code, links and the marks of Markdown; a cell and an item of a list end one."""
    text = re.sub(r"<!--.*?-->", "", without_code(text), flags=re.DOTALL)
    text = re.sub(r"^    .*$|^#+ .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. ))|\|", text)
    return [sentence for block in blocks for sentence in re.split(r"(?<=[.!?])\s+", " ".join(block.split()))]


@pytest.mark.parametrize("page", FOR_NEWCOMERS)
def test_no_sentence_for_newcomers_has_more_than_thirty_words(page: str) -> None:
    assert [sentence for sentence in sentences(TEXTS[page]) if len(re.findall(r"[\w'’-]+", sentence)) > MOST_WORDS] == []


FIXED_ID = re.compile(r"""--message-id[ =](?![$"{])\S|message_id=f?["'][^"'{]+["'](?!\w)|"message-id", b"[^"]*\"""")
"""A message id that is the same each time a reader pastes it: its second message is dropped as a repetition."""


@pytest.mark.parametrize("page", [*FOR_NEWCOMERS, *(name for name in TEXTS if name.startswith("examples/"))])
def test_what_people_paste_twice_has_no_fixed_message_id(page: str) -> None:
    pasted = TEXTS[page] if page.endswith(".py") else "\n".join(re.findall(r"^```.*?^```", TEXTS[page], re.DOTALL | re.MULTILINE))
    assert FIXED_ID.findall(pasted.replace('message_id="…"', "")) == []


@pytest.mark.parametrize(
    "line", ["send a t --message-id job-1", 'send("a", "t", b"x", message_id="job-2")', '("message-id", b"job-3")']
)
def test_a_fixed_message_id_would_be_found(line: str) -> None:
    assert FIXED_ID.search(line)
    assert not FIXED_ID.search('send a t --message-id $id; send(message_id=name); send(message_id=f"job-{number}")')


def test_a_docstring_begins_with_a_verb_or_its_subject() -> None:
    """A beginning such as "Of" or "What" makes a reader look for the sentence to which it belongs."""
    beginning = re.compile(r'"""(?:Of|Also|Than|Who|Whom|What|Which|That) ')
    code = {name: text for name, text in TEXTS.items() if name.endswith(".py")}
    assert len(code) > 500
    assert [
        f"{name}: {line.strip()}" for name, text in code.items() for line in text.splitlines() if beginning.match(line.strip())
    ] == []


def test_the_page_of_gateways_has_every_reason_of_the_fast_path() -> None:
    page = TEXTS["docs/operate/gateways.md"]
    assert [reason for reason in (*OfferRefusal, *OfferHold) if f"`{reason}`" not in page] == []


def test_the_front_page_is_short() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 120


def promises() -> dict[str, list[str]]:
    """The files and folders with tests in the row of each promise, by its id."""
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| .* \| ([^|]*) \|$", TEXTS["docs/project/verification.md"], flags=re.MULTILINE)
    assert len(rows) == len(dict(rows)), "an id is given once"
    named = {promise: re.findall(r"(?<![\w/])(?:tests|trials)/[\w/]+(?:\.py)?", tests) for promise, tests in rows}
    return {promise: [path for path in paths if "/test_" in path or not path.endswith(".py")] for promise, paths in named.items()}


def files_by_promise() -> dict[str, set[str]]:
    """The files of the tests that name each promise."""
    found: dict[str, set[str]] = {}
    for name, text in TEXTS.items():
        if name.startswith(("tests/", "trials/")):
            for arguments in re.findall(r"pytest\.mark\.promise\(([^)]*)\)", text):
                for promise in re.findall(r'"([^"]+)"', arguments):
                    found.setdefault(promise, set()).add(name)
    return found


PROMISES, NAMED_PROMISES = promises(), files_by_promise()


@pytest.mark.promise("pages")
def test_every_promise_is_named_by_a_test_of_each_file_of_its_row() -> None:
    assert len(PROMISES) > 85
    assert PROMISES.keys() == NAMED_PROMISES.keys()
    missing = {
        promise: [path for path in paths if not any(is_within(name, path) for name in NAMED_PROMISES[promise])]
        for promise, paths in PROMISES.items()
    }
    assert {promise: paths for promise, paths in missing.items() if paths} == {}


def test_a_test_names_only_promises_whose_row_has_its_file() -> None:
    elsewhere = {
        promise: [name for name in names if not any(is_within(name, path) for path in PROMISES[promise])]
        for promise, names in NAMED_PROMISES.items()
    }
    assert {promise: names for promise, names in elsewhere.items() if names} == {}


def is_within(name: str, path: str) -> bool:
    """path: of a file, or of a folder."""
    return name == path or name.startswith(f"{path}/")


def test_every_test_that_the_page_of_verification_names_exists() -> None:
    named = set(re.findall(r"(?<![\w/])(?:tests|trials)/[\w/]+(?:\.py)?", TEXTS["docs/project/verification.md"]))
    assert len(named) > 100
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


DECISIONS = [page for page in PAGES if re.match(r"docs/decisions/\d", page)]


@pytest.mark.parametrize("page", DECISIONS)
def test_a_decision_has_status_date_and_what_it_supersedes(page: str) -> None:
    title, _, facts = TEXTS[page].split("\n")[:3]
    assert title.startswith(f"# {int(Path(page).name[:4])}. ")
    assert re.fullmatch(
        r"\*\*Status:\*\* (in force|replaced by ).*\. \*\*Date:\*\* \d{4}-\d\d-\d\d\. \*\*Supersedes:\*\* .+\.", facts
    )
    assert all(f"**{part}" in TEXTS[page] for part in ("Context", "Decision")), "say what was the case, and what holds now"


@pytest.mark.parametrize("page", DECISIONS)
def test_a_decision_is_once_in_the_index_and_in_the_navigation(page: str) -> None:
    name = Path(page).name
    rows = re.findall(rf"^\| (\d+) \| \[[^\]]+\]\({name}\) \| .+ \|$", TEXTS["docs/decisions/README.md"], flags=re.MULTILINE)
    assert [int(number) for number in rows] == [int(name[:4])]
    assert NAVIGATION.count(f" decisions/{name}\n") == 1


def test_a_test_runs_every_example() -> None:
    examples = [Path(name).name for name in TEXTS if name.startswith("examples/")]
    running = "".join(text for name, text in TEXTS.items() if name.startswith("tests/integration/"))
    assert len(examples) > 10
    assert [example for example in examples if f'"{example}"' not in running] == []


def test_every_picture_is_shown_and_has_a_command_that_makes_it() -> None:
    table = TEXTS["docs/project/contributing.md"]
    shown = "".join(text for name, text in TEXTS.items() if name.endswith(".md"))
    pictures = sorted(path.name for path in (ROOT / "docs" / "pictures").iterdir())
    assert len(pictures) > 5
    assert [name for name in pictures if f"`{name}`" not in table or f"pictures/{name})" not in shown] == []


def test_the_table_of_packages_names_every_folder_in_them() -> None:
    page = ARCHITECTURE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)/` \| (.+)$", page, flags=re.MULTILINE))
    folders = {(room, path.name) for room in rows for path in (ROOT / room).iterdir() if (path / "__init__.py").exists()}
    assert len(folders) > 20
    assert sorted(f"{room}/{name}" for room, name in folders if f"`{name}/`" not in rows[room]) == []


WALKS = ("To the device", "To the device, by a micro-batch", "From the device", "From device to device")


@pytest.mark.parametrize("direction", WALKS)
def test_the_walk_of_a_message_names_a_file_or_folder_at_every_station(direction: str) -> None:
    """docs/how/architecture.md: one line a station, each with what exists."""
    section = ARCHITECTURE.read_text(encoding="utf-8").split(f"### {direction}\n")[1].split("\n#")[0]
    stations = [line for line in section.splitlines() if re.match(r"\d+\. ", line)]
    assert len(stations) >= 8
    assert [int(line.split(".")[0]) for line in stations] == list(range(1, len(stations) + 1))
    for station in stations:
        named = re.findall(r"`([\w/]+(?:\.py|/))`", station)
        assert named, f"names no file: {station}"
        assert [name for name in named if not (ROOT / name).exists()] == [], station


def options_of(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the name and each option of a command, and of the commands in it that `--help` shows."""
    yield from ((path, option) for each in command.params if not getattr(each, "hidden", False) for option in each.opts)
    for inner in getattr(command, "commands", {}).values():
        if not inner.hidden:
            yield from options_of(inner, f"{path} {inner.name}")


def test_the_page_of_commands_has_every_option_of_every_command() -> None:
    sections = re.split(r"^#+ ", TEXTS["docs/reference/commands.md"], flags=re.MULTILINE)
    sections_of = {section.split("\n")[0]: section for section in sections} | {"inflight": sections[1]}
    options = [(path, option) for path, option in options_of(get_command(app), "inflight") if option.startswith("--")]
    assert len(options) > 100
    ignored = {"--help", "--install-completion", "--show-completion"}
    missing = [pair for pair in options if not re.search(rf"(?<![\w-]){pair[1]}\b", sections_of[pair[0]])]
    assert [pair for pair in missing if pair[1] not in ignored] == []
