"""The password file: a line for each user, `NAME:HASH`, written by `inflight users`. Empty lines and comments (`#`) are skipped.

A hash is argon2id in its usual text form (RFC 9106). It has its parameters in it, so each line may have its own.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import argon2

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.usernames import WHAT_IS_ALLOWED, is_username

HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""19 MiB and two passes, about 20 ms of one core: OWASP's minimum, with little memory."""
_MAX_HASH_MEMORY_KIB: Final = 1 << 20
_LOCK_TIMEOUT_S: Final = 10.0
_LOCK_POLL_S: Final = 0.02
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


def edit_password_file(path: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Changes the users of a file that other commands and people may edit at the same time.

    1. Lock; 2. read; 3. replace atomically; 4. read again: an editor does not know the lock.

    Args:
        path: A link stays, and its target is replaced. The file need not exist.
        change: Returns the new hashes by user name. What it raises leaves the file as it is.

    Raises:
        UnusableFile: The file cannot be read or written, or it has other content than was written.
    """
    target = path.resolve()
    try:
        with _locked(target):  # step 1
            users = change(read_password_file(target) if target.exists() else {})  # step 2
            write_password_file(target, users)  # step 3
            if read_password_file(target) != users:  # step 4
                raise UnusableFile(f"{path} was changed by another program at the same time. See what is in it, and try again.")
    except OSError as error:
        raise UnusableFile(
            f"{path} cannot be written: {error.strerror}. Its directory must exist, and both be writable."
        ) from error


def write_password_file(path: Path, users: Mapping[str, str]) -> None:
    """Replaces the file atomically, with its mode and owner. A file that did not exist is readable by its owner only."""
    before = path.stat() if path.exists() else None
    descriptor, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if before is not None:
                _own_as(before, file.fileno())
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


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks the directory of the file: the file itself is replaced. Raises UnusableFile after ten seconds."""
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        until_s = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise UnusableFile(
                        f"{path} is locked by another `inflight users` for {_LOCK_TIMEOUT_S:g} s. Nothing was changed; try again."
                    ) from None
                time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(directory)


def _own_as(before: os.stat_result, descriptor: int) -> None:
    """Gives a file mode, owner and group of another one, as far as this user may: the gateway must go on reading it."""
    for owner in before.st_uid, -1:
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, owner, before.st_gid)
            break
    os.fchmod(descriptor, before.st_mode & 0o777)


def _is_hash(text: str) -> bool:
    try:
        parameters = argon2.extract_parameters(text)
    except argon2.exceptions.InvalidHash:
        return False
    return parameters.type is argon2.Type.ID and parameters.memory_cost <= _MAX_HASH_MEMORY_KIB
