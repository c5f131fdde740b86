"""A record without a key is for each client that its headers name."""

import pytest

from state.records.routing import MAX_RECIPIENTS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def test_a_record_reaches_every_client_that_it_names_and_no_other(pipeline) -> None:
    messages = pipeline.settings.topics.messages
    clients = [f"fleet-{number}/ü" for number in range(20)]
    pipeline.start()
    for client in (*clients, "not-named"):
        pipeline.connect(client)
    recipients = [(f"recipient-{client}", b"") for client in clients]
    pipeline.send(messages, b"to all", key=None, headers=[("mqtt-topic", b"t"), ("message-id", b"m"), *recipients, ("x", b"1")])
    pipeline.send_message("not-named", b"direct", ("recipient-fleet-0/ü", b""))

    payloads = sorted(publish.payload for publish in pipeline.publishes(21))
    assert payloads == [b"direct", *[b"to all"] * 20]


def test_a_record_with_too_many_recipients_is_a_dead_letter_that_says_so(pipeline) -> None:
    pipeline.start()
    recipients = [(f"recipient-{number}", b"") for number in range(MAX_RECIPIENTS + 1)]
    pipeline.send(pipeline.settings.topics.messages, b"p", key=None, headers=[("mqtt-topic", b"t"), *recipients])
    (letter,) = pipeline.read(pipeline.settings.topics.dead_letters, 1)
    assert b"501 recipients: at most 500" in dict(letter.headers)["x-detail"]
    assert letter.value == b"p"
