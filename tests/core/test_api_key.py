"""Keys: that they cannot be guessed, that what is kept does not tell them, and that nothing else opens the door."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.api_key import KEY_PREFIX, KeyRing, digest_of, digest_text, new_key, parse_digest
from headrace.core.errors import UnauthenticatedError

KEY = "hr_a-key-for-tests-that-nobody-has"


def test_keys_are_long_random_and_recognised():
    keys = {new_key() for _ in range(200)}
    assert len(keys) == 200
    for key in keys:
        assert key.startswith(KEY_PREFIX)
        # base64 carries 6 bits a character: more than 128 of them are random.
        assert (len(key) - len(KEY_PREFIX)) * 6 >= 128
        assert key.isascii()
        assert not any(c.isspace() for c in key)


def test_the_digest_is_the_one_that_other_tools_make():
    # printf hr_example | sha256sum
    assert (
        digest_text(digest_of("hr_example"))
        == "sha256:c490bba8e391a3cabd38387a7103bc8badeb78614786a80b03212fbf5803f97f"
    )


@given(st.binary(min_size=32, max_size=32))
def test_a_digest_survives_its_text(digest):
    assert parse_digest(digest_text(digest)) == digest


@pytest.mark.parametrize(
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
def test_other_texts_are_no_digest(text):
    assert parse_digest(text) is None


@pytest.mark.parametrize("said", [f"Bearer {KEY}", f"bearer  {KEY} ", f"BEARER {KEY}"])
def test_a_key_is_found_by_what_a_request_says(said):
    ring = KeyRing({digest_of("another"): "other", digest_of(KEY): "ours"})
    assert ring.find(said) == "ours"
    assert len(ring) == 2


@given(st.one_of(st.none(), st.text(), st.text().map(lambda text: f"Bearer {text}")))
def test_nothing_else_is_found(said):
    ring = KeyRing({digest_of(KEY): "ours"})
    with pytest.raises(UnauthenticatedError):
        ring.find(said)


def test_what_is_no_utf8_is_another_key_and_no_error_of_ours():
    with pytest.raises(UnauthenticatedError, match="not known"):
        KeyRing({digest_of(KEY): "ours"}).find("Bearer \udcff")


def test_a_refusal_does_not_tell_the_key_that_was_tried():
    with pytest.raises(UnauthenticatedError) as raised:
        KeyRing({}).find(f"Bearer {KEY}")
    assert KEY not in str(raised.value)
