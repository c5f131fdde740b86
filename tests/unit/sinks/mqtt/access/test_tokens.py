import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.grant import LoginRefusal, LoginRefused, User
from sinks.mqtt.access.token_keys import TokenKey, read_token_keys
from sinks.mqtt.access.tokens import Tokens, looks_like_token
from sinks.mqtt.settings import LoginSettings

KEY = ec.generate_private_key(ec.SECP256R1())
NOW_S = int(time.time())
ONE_KEY = (TokenKey(KEY.public_key()),)
TOKENS = Tokens(LoginSettings(), lambda: ONE_KEY, clock_s=lambda: NOW_S)


def token(
    claims: dict[str, Any] | None = None,
    *,
    key: Any = KEY,
    algorithm: str = "ES256",
    key_id: str | None = None,
    without: str = "",
) -> bytes:
    said = {"sub": "ada", "exp": NOW_S + 3_600, **(claims or {})}
    said.pop(without, None)
    return jwt.encode(said, key, algorithm=algorithm, headers={"kid": key_id} if key_id else None).encode()


def refused(
    data: bytes, *, tokens: Tokens = TOKENS, username: str | None = None, refusal: LoginRefusal | None = LoginRefusal.TOKEN
) -> str:
    """refusal: None = that of a token, or of its key."""
    judged = tokens.user_of(data, username)
    assert isinstance(judged, LoginRefused), judged
    assert judged.refusal is refusal or (refusal is None and judged.refusal in (LoginRefusal.TOKEN, LoginRefusal.UNKNOWN_KEY))
    return judged.detail


def test_a_token_names_its_user() -> None:
    assert TOKENS.user_of(token(), None) == User("ada", valid_ms=3_610_000)
    assert TOKENS.user_of(token(), "ada") == User("ada", valid_ms=3_610_000)
    assert TOKENS.user_of(token(), "") == User("ada", valid_ms=3_610_000)


def test_claims_become_fields_of_the_user() -> None:
    said = {"client_id": "ada/1", "publish": ["up/#"], "subscribe": []}
    assert TOKENS.user_of(token(said), None) == User("ada", "ada/1", ("up/#",), (), valid_ms=3_610_000)


def test_an_expired_token_is_refused() -> None:
    assert "expired" in refused(token({"exp": NOW_S - 60})).lower()


def test_a_token_that_never_ends_is_refused() -> None:
    assert "exp" in refused(token(without="exp"))


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
def test_a_time_as_text_is_refused(claim: str) -> None:
    time_s = NOW_S + 3_600 if claim == "exp" else NOW_S
    data = json.dumps({"sub": "ada", "exp": NOW_S + 3_600, claim: str(time_s)}).encode()
    assert f"{claim} is not a number" in refused(jwt.api_jws.encode(data, KEY, algorithm="ES256").encode())


def test_a_token_of_another_signer_is_refused() -> None:
    refused(token(key=ec.generate_private_key(ec.SECP256R1())), refusal=LoginRefusal.UNKNOWN_KEY)


def test_a_token_whose_claims_were_changed_is_refused() -> None:
    header, _, signature = token().split(b".")
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "root", "exp": NOW_S + 3_600}).encode()).rstrip(b"=")
    refused(b".".join((header, claims, signature)), refusal=LoginRefusal.UNKNOWN_KEY)


def test_only_the_configured_algorithms_count() -> None:
    """The unsigned token, the MAC whose key is the public key, and the other signature are refused."""
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    refused(token(key=None, algorithm="none"))
    header = base64.urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"=")
    mac = jwt.api_jws.PyJWS().get_algorithm_by_name("HS256")
    body = header + b"." + token().split(b".")[1]
    refused(body + b"." + base64.urlsafe_b64encode(mac.sign(body, public)).rstrip(b"="))
    rsa_key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    refused(token(key=rsa_key, algorithm="RS256"), refusal=LoginRefusal.UNKNOWN_KEY)
    only_ed = Tokens(LoginSettings(token_algorithms=("EdDSA",)), lambda: ONE_KEY)
    refused(token(), tokens=only_ed)


def test_a_token_for_another_user_name_is_refused() -> None:
    assert "another user name" in refused(token(), username="eve")


@pytest.mark.parametrize(
    "claims", [{"sub": "a/b"}, {"sub": ""}, {"client_id": 7}, {"publish": "up"}, {"subscribe": [1]}, {"publish": None}]
)
def test_invalid_claims_are_refused(claims: dict[str, Any]) -> None:
    refused(token(claims))


def test_issuer_audience_and_user_claim_can_be_asked_for() -> None:
    settings = LoginSettings(token_issuer="us", token_audience="inflight", token_username_claim="device")
    strict = Tokens(settings, lambda: ONE_KEY, clock_s=lambda: NOW_S)
    right = {"iss": "us", "aud": ["inflight", "other"], "device": "d1"}
    assert strict.user_of(token(right), None) == User("d1", valid_ms=3_610_000)
    for wrong in ({"iss": "them"}, {"aud": "other"}, {"device": 7}):
        refused(token(right | wrong), tokens=strict)
    for missing in right:
        refused(token(right, without=missing), tokens=strict)
    assert isinstance(TOKENS.user_of(token({"aud": "whoever"}), None), User)


def test_garbage_is_refused() -> None:
    deep = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 40_000).rstrip(b"=")
    for data in (b"eyJ..", b"eyJ.\xff.\x00", deep + b".e30.AA", b"eyJhbGciOiJFUzI1NiJ9.e30."):
        refused(data, refusal=None)


def test_a_token_is_recognised_by_its_form() -> None:
    assert looks_like_token(token())
    assert not looks_like_token(b"password.with.dots")
    assert not looks_like_token(b"eyJust a password")


def test_a_key_is_a_public_one(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(UnusableFile, match="No such file"):
        read_token_keys(path)
    private = ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(UnusableFile, match="neither a public key"):
        read_token_keys(path)
    path.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    tokens = Tokens(LoginSettings(token_algorithms=("EdDSA",)), lambda: read_token_keys(path))
    assert isinstance(tokens.user_of(token(key=private, algorithm="EdDSA"), None), User)


def test_a_token_is_verified_by_the_key_that_it_names() -> None:
    other, rsa_key = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    keys = (TokenKey(rsa_key.public_key(), "c", "RS256"), TokenKey(KEY.public_key(), "a"), TokenKey(other.public_key(), "b"))
    tokens = Tokens(LoginSettings(), lambda: keys, clock_s=lambda: NOW_S)
    for key, key_id in ((KEY, "a"), (other, "b"), (KEY, None), (other, None)):
        assert isinstance(tokens.user_of(token(key=key, key_id=key_id), None), User)
    assert isinstance(tokens.user_of(token(key=rsa_key, key_id="c", algorithm="RS256"), None), User)
    refused(token(key=KEY, key_id="b"), tokens=tokens)
    refused(token(key=rsa_key, key_id="c", algorithm="RS512"), tokens=tokens)


def test_a_token_that_no_key_fits_may_be_signed_with_a_new_one() -> None:
    """The issuer may have added the key that has signed it, also if the token has no `kid`."""
    new = ec.generate_private_key(ec.SECP256R1())
    tokens = Tokens(LoginSettings(), lambda: (TokenKey(KEY.public_key(), "a"),), clock_s=lambda: NOW_S)
    assert "no key of the issuer fits kid 'd'" in refused(
        token(key=KEY, key_id="d"), tokens=tokens, refusal=LoginRefusal.UNKNOWN_KEY
    )
    refused(token(key=new), tokens=tokens, refusal=LoginRefusal.UNKNOWN_KEY)
    refused(token(key=new, key_id="a"), tokens=tokens)


def key_set(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"keys": entries}).encode()


def as_jwk(key: ec.EllipticCurvePrivateKey, **fields: str) -> dict[str, Any]:
    return {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), **fields}


def test_a_key_file_may_be_a_set_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(
        key_set(
            as_jwk(KEY, kid="a", alg="ES256", use="sig"),
            as_jwk(KEY, kid="b", use="enc"),
            {"kty": "oct", "k": "c2hhcmVk", "kid": "c"},
            {"kty": "new", "kid": "d"},
            {"kty": "EC", "kid": "e"},
        )
    )
    assert [(key.key_id, key.algorithm) for key in read_token_keys(path)] == [("a", "ES256")]
    for useless in (key_set(), key_set({"kty": "oct", "k": "c2hhcmVk"}), b"{}", b'{"keys": 7}', b"{broken"):
        path.write_bytes(useless)
        with pytest.raises(UnusableFile, match=r"jwks\.json is neither a public key in PEM nor a JSON Web Key Set"):
            read_token_keys(path)


@given(st.lists(st.binary(max_size=60), min_size=3, max_size=3), st.one_of(st.none(), st.text(max_size=5)))
def test_whatever_is_sent_is_refused_and_nothing_else_happens(parts: list[bytes], username: str | None) -> None:
    encoded = (base64.urlsafe_b64encode(part).rstrip(b"=") for part in (b'{"' + parts[0], *parts[1:]))
    for data in (b".".join(encoded), b"eyJ" + b".".join(parts)):
        refused(data, username=username, refusal=None)


@given(
    st.dictionaries(
        st.sampled_from(["sub", "exp", "nbf", "iat", "aud", "iss", "client_id", "publish", "subscribe"]),
        st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=3),
    )
)
def test_signed_claims_of_any_kind_are_judged(claims: dict[str, Any]) -> None:
    """The signer is trusted, but may have bugs."""
    signed = jwt.api_jws.encode(json.dumps({"sub": "ada", "exp": NOW_S + 3_600, **claims}).encode(), KEY, algorithm="ES256")
    assert isinstance(TOKENS.user_of(signed.encode(), None), User | LoginRefused)
