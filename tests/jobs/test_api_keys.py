"""API keys: randomness, digests, and lookup."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import UnauthenticatedError
from headrace.jobs.access import (
    ANONYMOUS_KEY,
    KEY_PREFIX,
    Access,
    Scope,
    format_digest,
    hash_key,
    new_key,
    parse_digest,
)

KEY = "hr_a-key-for-tests-that-nobody-has"


def test_keys_are_random_and_have_the_prefix():
    keys = {new_key() for _ in range(200)}
    assert len(keys) == 200
    for key in keys:
        assert key.startswith(KEY_PREFIX)
        # base64 carries 6 bits a character: the key has more than 128 random bits.
        assert (len(key) - len(KEY_PREFIX)) * 6 >= 128
        assert key.isascii()
        assert not any(c.isspace() for c in key)


def test_digest_equals_sha256sum():
    # printf hr_example | sha256sum
    assert (
        format_digest(hash_key("hr_example"))
        == "sha256:c490bba8e391a3cabd38387a7103bc8badeb78614786a80b03212fbf5803f97f"
    )


@given(st.binary(min_size=32, max_size=32))
def test_digest_text_round_trip(digest):
    assert parse_digest(format_digest(digest)) == digest


@for_each(
    "text",
    [
        "",
        "sha256:",
        "sha256:" + "0" * 63,
        "sha256:" + "0" * 65,
        "sha256:" + "A" * 64,
        "sha256:" + "0" * 64 + "\n",
        "sha512:" + "0" * 64,
        "0" * 64,
        KEY,
    ],
)
def test_parse_digest_refuses_other_text(text):
    assert parse_digest(text) is None


@for_each("header", [f"Bearer {KEY}", f"bearer  {KEY} ", f"BEARER {KEY}"])
def test_key_is_found_by_its_header(header):
    ours = replace(ANONYMOUS_KEY, name="ours")
    access = Access({hash_key("another"): ANONYMOUS_KEY, hash_key(KEY): ours})
    assert access.check(header, Scope.READ) is ours


@given(st.one_of(st.none(), st.text(), st.text().map(lambda text: f"Bearer {text}")))
def test_other_headers_are_unauthenticated(header):
    access = Access({hash_key(KEY): ANONYMOUS_KEY})
    with pytest.raises(UnauthenticatedError):
        access.check(header)


def test_key_with_surrogates_is_unknown():
    with pytest.raises(UnauthenticatedError, match="unknown API key"):
        Access({hash_key(KEY): ANONYMOUS_KEY}).check("Bearer \udcff")


def test_error_does_not_quote_the_key():
    with pytest.raises(UnauthenticatedError) as raised:
        Access({hash_key("another"): ANONYMOUS_KEY}).check(f"Bearer {KEY}")
    assert KEY not in str(raised.value)
