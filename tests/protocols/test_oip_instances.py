"""Round trips and refusals of numbers of instances."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import DataError
from headrace.core.statistics import InstanceStatus
from headrace.protocols.oip_documents import decode_instances, encode_instances, encode_instances_request

COUNTS = st.integers(0, 1 << 53)
TEXTS = st.text(st.characters(codec="utf-8"))
STATUSES = st.builds(InstanceStatus, TEXTS, TEXTS, COUNTS, COUNTS, COUNTS, COUNTS, st.none() | COUNTS)


@given(STATUSES)
def test_numbers_of_instances_round_trip(status):
    assert decode_instances(encode_instances(status)) == status


@given(st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)))
def test_other_bytes_are_refused(body):
    with pytest.raises(DataError, match="has no numbers of instances"):
        decode_instances(body)


@for_each("body", [b"[]", b"{}", b"null", b'{"instances_max":null}', b'{"instances_max":"x"}'])
def test_other_json_is_refused(body):
    with pytest.raises(DataError, match="has no numbers of instances"):
        decode_instances(body)


def test_fixed_number_has_no_largest_one():
    assert orjson.loads(encode_instances_request(2, None)) == {"instances": 2, "instances_max": None}
