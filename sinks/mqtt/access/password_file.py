"""The password file: a line for each user, `NAME:HASH`, written by `inflight users`. Empty lines and comments (`#`) are skipped.

A hash is argon2id in its usual text form (RFC 9106). It has its parameters in it, so each line may have its own.
"""

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import argon2

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.usernames import WHAT_IS_ALLOWED, is_username

HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""19 MiB and two passes, about 20 ms of one core: OWASP's minimum, with little memory."""
_MAX_HASH_MEMORY_KIB: Final = 1 << 20
_NO_USERS: Final = "# no users\n"
"""Distinguishes a file without users from one that an unfinished save has emptied."""


def read_password_file(path: Path, *, is_reload: bool = False) -> dict[str, str]:
    """Returns hashes by user name.

    Args:
        is_reload: Users of this file are in force, so one without a line was emptied by an unfinished save.

    Raises:
        UnusableFile: The file cannot be read, is invalid or is cut off.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror}. Make it with `inflight users add`.") from error
    except UnicodeDecodeError as error:
        raise UnusableFile(f"{path} is not UTF-8 text. Make it with `inflight users add`.") from error
    if is_reload and not text.strip():
        raise UnusableFile(f"{path} is empty. `inflight users remove` removes users; without a password file nobody logs in.")
    *lines, rest = text.split("\n")
    if rest:
        raise UnusableFile(f"{path}:{len(lines) + 1}: the last line has no end, so the file may be cut off. Save it whole.")
    users: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hashed = line.strip().rpartition(":")
        if not is_username(name) or not _is_hash(hashed):
            raise UnusableFile(
                f"{path}:{number}: is not NAME:HASH with an argon2id hash and a name of {WHAT_IS_ALLOWED}. Write it with "
                "`inflight users add`; a password in plain text does not belong here."
            )
        if name in users:
            raise UnusableFile(f"{path}:{number}: the user {name!r} stands here a second time. Remove one of the lines.")
        users[name] = hashed
    return users


def write_password_file(path: Path, users: Mapping[str, str]) -> None:
    """Replaces the file atomically. A file that did not exist is readable by its owner only."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    descriptor, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.writelines(f"{name}:{hashed}\n" for name, hashed in sorted(users.items()))
            if not users:
                file.write(_NO_USERS)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def _is_hash(text: str) -> bool:
    try:
        parameters = argon2.extract_parameters(text)
    except argon2.exceptions.InvalidHash:
        return False
    return parameters.type is argon2.Type.ID and parameters.memory_cost <= _MAX_HASH_MEMORY_KIB
