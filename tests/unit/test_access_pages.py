"""docs/operate/security.md and pages with a part of inflight.toml: each part is accepted, and commands run as written."""

import re
from pathlib import Path

import pytest
import trustme
from typer.testing import CliRunner

from inflight.cli import app
from streaming.config.settings import load_settings

AUTHORITY = trustme.CA().cert_pem.bytes()
DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "guides/devices.md",
    "guides/scheduling.md",
    "operate/cluster.md",
    "operate/install.md",
    "operate/security.md",
    "operate/what_if.md",
)


def blocks_of(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("page", "number"), [(page, number) for page in PAGES for number in range(len(blocks_of(page, "toml")))])
def test_a_configuration_of_a_page_is_accepted(page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says of a listener that others reach that it needs a login, and has the login further down."""
    text = blocks_of(page, "toml")[number]
    for name in set(re.findall(r'"(/(?:etc/inflight|run/secrets)/[^"]+)"', text)):
        file = tmp_path / Path(name).name
        file.write_bytes(AUTHORITY if file.suffix == ".pem" else b"secret")
        text = text.replace(name, str(file))
    (tmp_path / "inflight.toml").write_text(text, encoding="utf-8")
    if "sasl_password_file =" not in text:
        monkeypatch.setenv("INFLIGHT__KAFKA__SASL_PASSWORD", "secret")  # as the page of the installation says
    login = ["gateway.login.password_file=users"] if "[[listeners]]" in text and "[gateway.login]" not in text else []
    load_settings(tmp_path / "inflight.toml", login)


def test_the_commands_for_users_run_as_written(tmp_path: Path) -> None:
    (block,) = [block for block in blocks_of("operate/security.md", "") if "inflight users" in block]
    add, list_all, remove = re.findall(
        r"^inflight ([^#\n]*)", block.replace("/etc/inflight/users", str(tmp_path / "users")), re.MULTILINE
    )
    said = [CliRunner().invoke(app, command.split(), input="secret\n").output for command in (add, list_all, remove, list_all)]
    assert said == [f"added lamp-1 in {tmp_path / 'users'}\n", "lamp-1\n", f"removed lamp-1 from {tmp_path / 'users'}\n", ""]
