"""Tokens: from a real endpoint on loopback, and from files."""

from collections.abc import Iterator

import jwt
import pytest

from sinks.kafka.security.settings import KafkaSecurity, SaslMechanism, SecurityProtocol
from sinks.kafka.security.tokens import EndpointTokens, TokenUnavailable
from tests.support.token_endpoint import TokenEndpoint


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint().serving() as serving:
        yield serving


def security(endpoint: TokenEndpoint, *, secret: str | None = None) -> KafkaSecurity:
    return KafkaSecurity(
        security_protocol=SecurityProtocol.SASL_SSL,
        sasl_mechanism=SaslMechanism.OAUTHBEARER,
        sasl_username="ann",
        sasl_password=endpoint.secret if secret is None else secret,
        sasl_token_url=endpoint.url,
        sasl_token_scope="kafka",
    )


def test_a_token_is_asked_for_once_and_again_before_it_ends(endpoint: TokenEndpoint) -> None:
    now = [1_000.0]
    tokens = EndpointTokens(security(endpoint), monotonic=lambda: now[0])
    first = tokens.token()
    assert jwt.decode(first, options={"verify_signature": False})["sub"] == "ann"
    now[0] += 0.8 * endpoint.life_s - 1
    assert tokens.token() == first
    assert endpoint.asked == [("ann", "kafka")]
    now[0] += 1
    tokens.token()
    assert endpoint.asked == [("ann", "kafka")] * 2


def test_a_token_is_given_with_the_time_that_is_left_of_it(endpoint: TokenEndpoint) -> None:
    now = [1_000.0]
    tokens = EndpointTokens(security(endpoint), monotonic=lambda: now[0])
    first = tokens.token_and_life_s()
    assert first[1] == endpoint.life_s
    now[0] += 10
    assert tokens.token_and_life_s() == (first[0], endpoint.life_s - 10)


def test_a_refusal_shows_neither_secret_nor_token(endpoint: TokenEndpoint) -> None:
    with pytest.raises(TokenUnavailable, match=r"gave no token: HTTP status 401.*Check kafka\.sasl_token_url") as caught:
        EndpointTokens(security(endpoint, secret="hunter2-wrong")).token()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"access_token": ""}', b'{"access_token": 5}', '{"access_token": "é"}'.encode()]
)
def test_an_answer_without_a_token_is_an_error(endpoint: TokenEndpoint, body: bytes) -> None:
    endpoint.broken = body
    with pytest.raises(TokenUnavailable):
        EndpointTokens(security(endpoint)).token()


def test_an_endpoint_that_is_not_there_is_named(endpoint: TokenEndpoint) -> None:
    with TokenEndpoint().serving() as other:
        gone = security(other)
    with pytest.raises(TokenUnavailable, match=other.url):
        EndpointTokens(gone).token()
