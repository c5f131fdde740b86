"""The name of the one who asks, as this machine knows it."""

import os
import pwd
import socket

import pytest

from streaming.history.operator_requests import this_user


def test_the_user_is_the_one_of_the_process_and_not_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv("USER", "somebody-else")
    monkeypatch.setenv("LOGNAME", "somebody-else")
    assert this_user() == f"{pwd.getpwuid(os.getuid()).pw_name} on {socket.gethostname()}"


def test_a_user_behind_sudo_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")
    assert "(sudo by anna)" in this_user()


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert this_user() == f"uid 4000000000 on {socket.gethostname()}"
