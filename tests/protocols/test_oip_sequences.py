"""Listings of sequences go there and back, and what is none is said to be none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError
from headrace.core.sequence import SequenceEnd, SequenceInfo, SequenceListing
from headrace.protocols.oip_sequences import LISTED, LISTED_MAX, decode_limit, decode_listing, encode_listing

COUNTS = st.integers(0, 1 << 53)
SECONDS = st.floats(0, 1e9)
TEXTS = st.text(st.characters(codec="utf-8"))
INFOS = st.builds(SequenceInfo, TEXTS, TEXTS, COUNTS, COUNTS, COUNTS, SECONDS, SECONDS)
LISTINGS = st.builds(
    SequenceListing,
    TEXTS,
    TEXTS,
    COUNTS,
    COUNTS,
    st.dictionaries(st.sampled_from(SequenceEnd).map(str), COUNTS),
    st.lists(INFOS, max_size=3).map(tuple),
)


@given(LISTINGS)
def test_a_listing_comes_back_as_it_was(listing):
    assert decode_listing(encode_listing(listing)) == listing


@given(st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)))
def test_anything_else_is_no_listing(body):
    with pytest.raises(DataError, match="no listing of sequences"):
        decode_listing(body)


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"ends": []}', b"null", b'{"ends":{"x":"y"}}'])
def test_json_of_another_form_is_no_listing(body):
    with pytest.raises(DataError, match="no listing of sequences"):
        decode_listing(body)


@pytest.mark.parametrize(
    ("query", "limit"),
    [(b"", LISTED), (b"limit=0", 0), (b"x=1&limit=7", 7)],
)
def test_a_limit_is_a_number_in_the_query(query, limit):
    assert decode_limit(query) == limit


@pytest.mark.parametrize(
    "query",
    [b"limit=", b"limit=1&limit=2", b"limit=-1", b"limit=x", b"limit=%d" % (LISTED_MAX + 1), b"limit=\xb2"],
)
def test_a_limit_that_is_none_is_told(query):
    with pytest.raises(DataError, match="limit must be a whole number"):
        decode_limit(query)
