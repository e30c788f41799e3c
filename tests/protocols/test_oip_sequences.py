"""Round trips and refusals of sequence listings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import DataError
from headrace.core.sequence import SequenceEnd, SequenceInfo, SequenceListing
from headrace.protocols.oip_documents import (
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
