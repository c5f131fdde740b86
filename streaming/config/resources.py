"""Finds our files on disk, in a checkout and in an installed wheel."""

import os
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent.parent
_CHECKOUT: Final = _PACKAGE.parent


def in_checkout() -> bool:
    """True when the packages are imported from a checkout (an editable install), not from site-packages."""
    return (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "conf").is_dir()


def conf_file(name: str) -> Path:
    """The path of a file of conf/. Raises FileNotFoundError for a broken installation."""
    # The wheel carries conf/ as streaming/_conf (pyproject.toml, force-include).
    folder = _CHECKOUT / "conf" if in_checkout() else _PACKAGE / "_conf"
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the installation is damaged, install Inflight again")
    return path


def cache_directory() -> Path:
    """Returns the directory of downloads: $INFLIGHT_CACHE, else .cache of the checkout, else the user's cache directory."""
    if configured := os.environ.get("INFLIGHT_CACHE"):
        return Path(configured).expanduser().absolute()
    if in_checkout():
        return _CHECKOUT / ".cache"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "inflight"
