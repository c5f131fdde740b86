"""A real browser, headless: Debian's chromium, which `make test-interop` and `make test-archive` install."""

import shutil
import subprocess
from pathlib import Path

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def browse(directory: Path, address: str, *options: str, size: tuple[int, int] = (1240, 1240)) -> str:
    """Opens a page in a browser that has never seen anything else; returns its standard output. directory: for what it writes."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "chromium is missing: apt-get install chromium"
    profile = directory / "profile"
    command = [chromium, *OPTIONS, f"--window-size={size[0]},{size[1]}", f"--user-data-dir={profile}", *options, address]
    try:
        return subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout
    finally:
        shutil.rmtree(profile, ignore_errors=True)


def document_of(directory: Path, address: str, *options: str) -> str:
    """Returns what the browser has made of the page."""
    return browse(directory, address, *options, "--dump-dom")
