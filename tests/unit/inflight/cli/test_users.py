from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from inflight.cli import app
from sinks.mqtt.access.password_file import read_password_file
from sinks.mqtt.access.passwords import Passwords

RUNNER = CliRunner()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def users(*arguments: str, file: Path, stdin: str = "") -> Result:
    return RUNNER.invoke(app, ["users", *arguments, "--file", str(file)], input=stdin)


def is_right(file: Path, name: str, password: str) -> bool:
    passwords = Passwords(0)
    passwords.users = read_password_file(file)
    return Passwords.verify(passwords.hash_of(name, password.encode()), password.encode())


def test_users_are_added_changed_listed_and_removed(file: Path) -> None:
    assert users("add", "bob", file=file, stdin="first\n").output == f"added bob in {file}\n"
    assert users("add", "ada", file=file, stdin="pässword with blanks \r\n").exit_code == 0
    assert is_right(file, "ada", "pässword with blanks ")
    assert users("add", "bob", file=file, stdin="second\n").output == f"changed bob in {file}\n"
    assert (is_right(file, "bob", "first"), is_right(file, "bob", "second")) == (False, True)
    assert users("list", file=file).output == "ada\nbob\n"
    assert users("remove", "bob", file=file).exit_code == 0
    assert users("list", file=file).output == "ada\n"


def test_a_password_is_no_argument(file: Path) -> None:
    assert users("add", "ada", "secret", file=file).exit_code == 2
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (("add", "a/b"), "p\n", "a user name has"),
        (("add", "ada"), "\n", "at least one character"),
        (("add", "ada"), "", "at least one character"),
        (("remove", "ada"), "", "has no user ada"),
    ],
)
def test_what_cannot_be_done_is_said(file: Path, arguments: tuple[str, ...], stdin: str, complaint: str) -> None:
    done = users(*arguments, file=file, stdin=stdin)
    assert done.exit_code == 2
    assert complaint in " ".join(done.output.replace("│", " ").split())
    assert not file.exists()


def test_the_file_of_the_configuration_is_the_default(file: Path) -> None:
    named = ["--set", f"gateway.login.password_file={file}"]
    assert RUNNER.invoke(app, ["users", "add", "ada", *named], input="p\n").exit_code == 0
    assert RUNNER.invoke(app, ["users", "list", *named]).output == "ada\n"
    unnamed = RUNNER.invoke(app, ["users", "list"])
    assert unnamed.exit_code == 2
    assert "--file" in unnamed.output
