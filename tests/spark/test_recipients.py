"""A record without a key is for each client that its headers name."""

import pytest

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
