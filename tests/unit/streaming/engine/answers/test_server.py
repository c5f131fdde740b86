import http.client
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.engine.answers.address import AnswersAddress
from streaming.engine.answers.asking import LOOPBACK, EngineBusy, ask_engine
from streaming.engine.answers.server import AnswerServer, SessionQuestions
from streaming.spark_internals.jvm import SPARK_ERRORS

CHECKPOINT = "/data/checkpoint/sessions"


class Questions(SessionQuestions):
    """Answers with the question, without Spark."""

    def __init__(self) -> None:
        self.is_closed = False

    def answer(self, path: str, parameters: dict[str, str]) -> bytes | None:
        match path:
            case "/gone":
                raise SPARK_ERRORS[0]("the checkpoint is gone")
            case "/wrong":
                raise ValueError("no number")
            case "/unknown":
                return None
        return b'["' + parameters.get("id", "").encode() + b'"]'

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AnswerServer]:
    with AnswerServer(Questions(), tmp_path, CHECKPOINT) as made:
        made.start()
        yield made


def status_of(address: AnswersAddress, token: str) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, address.port, timeout=10)
    connection.request("GET", "/client?id=x", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.usefixtures("server")
def test_the_engine_answers_a_command_of_its_data_directory(tmp_path: Path) -> None:
    assert ask_engine(tmp_path, CHECKPOINT, "client", 10, id="pump ä/7&") == ["pump ä/7&"]
    assert ask_engine(tmp_path, CHECKPOINT, "client", 10, id="") == [""]


@pytest.mark.usefixtures("server")
def test_only_a_command_with_the_token_gets_an_answer(tmp_path: Path) -> None:
    address = AnswersAddress.read(tmp_path)
    assert address is not None
    assert stat.S_IMODE((tmp_path / "answers.json").stat().st_mode) == 0o600
    assert [status_of(address, token) for token in (address.token, "", "wrong", "\xff")] == [200, 403, 403, 403]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("question", ["gone", "wrong", "unknown"])
def test_a_question_without_an_answer_is_left_to_spark(tmp_path: Path, question: str) -> None:
    assert ask_engine(tmp_path, CHECKPOINT, question, 10) is None


def test_a_busy_engine_is_named_instead_of_starting_spark(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        AnswersAddress(port=silent.getsockname()[1], token="t", checkpoint=CHECKPOINT).write(tmp_path)
        with pytest.raises(EngineBusy, match="has not answered within 0 s"):
            ask_engine(tmp_path, CHECKPOINT, "client", 0.1, id="x")


def test_an_engine_of_another_checkpoint_is_not_asked(server: AnswerServer, tmp_path: Path) -> None:
    assert ask_engine(tmp_path, "/elsewhere/sessions", "client", 10, id="x") is None
    assert ask_engine(tmp_path / "nobody", CHECKPOINT, "client", 10, id="x") is None


def test_an_engine_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    questions = Questions()
    with AnswerServer(questions, tmp_path, CHECKPOINT) as server:
        server.start()
        address = AnswersAddress.read(tmp_path)
    assert questions.is_closed
    assert AnswersAddress.read(tmp_path) is None
    assert address is not None
    address.write(tmp_path)  # as an engine leaves it that was killed
    assert ask_engine(tmp_path, CHECKPOINT, "client", 10, id="x") is None


def test_a_data_directory_that_is_full_does_not_stop_the_engine(tmp_path: Path) -> None:
    with AnswerServer(Questions(), tmp_path / "missing", CHECKPOINT) as server:
        server.start()
    assert ask_engine(tmp_path / "missing", CHECKPOINT, "client", 10, id="x") is None
