import fcntl
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sinks.mqtt.access import password_file
from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.password_file import HASHER, edit_password_file, read_password_file, write_password_file

HASH = HASHER.hash("x")


def complaint(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UnusableFile) as caught:
        read_password_file(path)
    return str(caught.value)


def test_a_written_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_password_file(path, {"ü:x": HASH, "ada": HASH})
    assert path.read_text(encoding="utf-8") == f"ada:{HASH}\nü:x:{HASH}\n"
    assert read_password_file(path) == {"ada": HASH, "ü:x": HASH}
    assert [file.name for file in tmp_path.iterdir()] == ["users"]


def test_only_the_owner_reads_a_new_file_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_password_file(path, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    write_password_file(path, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_empty_lines_and_comments_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"# devices\n\nada:{HASH}\n", encoding="utf-8")
    assert read_password_file(path) == {"ada": HASH}


@pytest.mark.parametrize(
    "line",
    [
        "ada",
        "ada:secret",
        ":HASH",
        "a/b:HASH",
        "ada:$argon2i$v=19$m=16,t=2,p=1$c29tZXNhbHQ$9sTbSlTio3Biev89thdrlA",
        "ada:$argon2id$v=19$m=99999999,t=2,p=1$c29tZXNhbHQ$9sTbSlTio3Biev89thdrlA",
    ],
)
def test_a_line_that_is_none_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    problem = complaint(tmp_path / "users", f"ok:{HASH}\n{line.replace('HASH', HASH)}\n")
    assert "users:2: " in problem
    assert "secret" not in problem
    assert "`inflight users add`" in problem


def test_a_user_stands_in_it_once(tmp_path: Path) -> None:
    assert "users:2: the user 'ada'" in complaint(tmp_path / "users", f"ada:{HASH}\nada:{HASH}\n")


def test_a_missing_or_binary_file_is_an_error(tmp_path: Path) -> None:
    assert "not UTF-8" in complaint(tmp_path / "users", b"\xff")
    with pytest.raises(UnusableFile, match="No such file"):
        read_password_file(tmp_path / "missing")


@pytest.mark.parametrize("cut", [1, 5, len(HASH)])
def test_a_half_written_file_is_an_error(tmp_path: Path, cut: int) -> None:
    whole = f"ada:{HASH}\nbob:{HASH}\n"
    assert "users:2: the last line has no end" in complaint(tmp_path / "users", whole[:-cut])


def test_a_file_in_force_is_not_emptied_by_an_unfinished_save(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("", encoding="utf-8")
    assert read_password_file(path) == {}
    with pytest.raises(UnusableFile, match=r"is empty\. `inflight users remove`"):
        read_password_file(path, is_reload=True)
    write_password_file(path, {})
    assert read_password_file(path, is_reload=True) == {}, "the command removes the last user"


def test_no_change_of_several_at_once_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_password_file(path, {"alice": HASH})
    start = threading.Barrier(17)

    def change(name: str) -> None:
        start.wait(10)
        if name == "alice":
            edit_password_file(path, lambda users: {user: users[user] for user in users if user != "alice"})
        else:
            edit_password_file(path, lambda users: users | {name: HASH})

    names = [f"user-{number}" for number in range(16)]
    with ThreadPoolExecutor(17) as threads:
        list(threads.map(change, ["alice", *names]))
    assert sorted(read_password_file(path)) == sorted(names)
    assert [file.name for file in tmp_path.iterdir()] == ["users"]


def test_a_change_by_an_editor_in_the_middle_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users"

    def write(target: Path, users: dict[str, str]) -> None:
        write_password_file(target, users)
        write_password_file(target, {})  # the editor, which knows no lock

    monkeypatch.setattr(password_file, "write_password_file", write)
    with pytest.raises(UnusableFile, match="changed by another program"):
        edit_password_file(path, lambda users: users | {"ada": HASH})


def test_a_link_stays_and_its_target_changes(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "users", tmp_path / "users"
    write_password_file(target, {"ada": HASH})
    target.chmod(0o640)
    link.symlink_to("there/users")
    edit_password_file(link, lambda users: users | {"bob": HASH})
    assert link.is_symlink()
    assert sorted(read_password_file(target)) == ["ada", "bob"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_lock_that_nobody_releases_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password_file, "_LOCK_TIMEOUT_S", 0.0)
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    with pytest.raises(UnusableFile, match="Nothing was changed; try again"):
        edit_password_file(tmp_path / "users", lambda users: users)
    os.close(directory)
    edit_password_file(tmp_path / "users", lambda users: users)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=r"missing/users cannot be written: No such file"):
        edit_password_file(tmp_path / "missing" / "users", lambda users: users)
