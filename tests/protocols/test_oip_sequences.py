"""Round trips and refusals of sequence listings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import DataError
from headrace.core.sequence import SequenceEnd, SequenceInfo, SequenceListing
from headrace.protocols.oip_sequences import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    decode_limit,
    decode_listing,
    encode_listing,
)

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
def test_listing_round_trips(listing):
    assert decode_listing(encode_listing(listing)) == listing


@given(st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)))
def test_other_bytes_are_refused(body):
    with pytest.raises(DataError, match="not a listing of sequences"):
        decode_listing(body)


@for_each("body", [b"[]", b"{}", b'{"ends": []}', b"null", b'{"ends":{"x":"y"}}'])
def test_other_json_is_refused(body):
    with pytest.raises(DataError, match="not a listing of sequences"):
        decode_listing(body)


@for_each(
    ("query", "limit"),
    [(b"", LIMIT_DEFAULT), (b"limit=0", 0), (b"x=1&limit=7", 7)],
)
def test_limit_is_read_from_the_query(query, limit):
    assert decode_limit(query) == limit


@for_each(
    "query",
    [b"limit=", b"limit=1&limit=2", b"limit=-1", b"limit=x", b"limit=%d" % (LIMIT_MAX + 1), b"limit=\xb2"],
)
def test_invalid_limit_is_refused(query):
    with pytest.raises(DataError, match="limit must be a whole number"):
        decode_limit(query)
