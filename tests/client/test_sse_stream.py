"""Decoding of event streams, for any chunk boundaries."""

import asyncio

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.client.model_server_rest import read_responses
from headrace.core.errors import DataError, EndpointRefusedError, LimitError
from headrace.core.tensor import InferResponse, Tensor
from headrace.protocols.oip_documents import encode_error
from headrace.protocols.oip_json import encode_response
from headrace.protocols.sse import EventDecoder, encode_event

RESPONSES = [
    InferResponse((Tensor("word", np.array([w], object)),), "words", "1") for w in ("to ", "be ", "", "✓")
]
BODIES = [encode_response(r).body for r in RESPONSES]


async def pieces_of(*pieces):
    for piece in pieces:
        yield piece


def read(*pieces):
    async def main():
        return [r async for r in read_responses(pieces_of(*pieces), "http://here")]

    return asyncio.run(main())


@given(st.lists(st.binary().filter(lambda b: b"\n" not in b and b"\r" not in b)), st.data())
def test_event_decoding_is_independent_of_chunk_boundaries(documents, data):
    body = b": a comment\n\n" + b"".join(map(encode_event, documents))
    if data.draw(st.booleans()):
        body = body.replace(b"\n", b"\r\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    decoder = EventDecoder()
    got = [e for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) for e in decoder.feed(body[a:b])]
    assert got == [d for d in documents if d]


def test_event_is_decoded_before_the_next_begins():
    decoder = EventDecoder()
    assert decoder.feed(b"data: 1\n") == []
    assert decoder.feed(b"\ndata: 2") == [b"1"]
    assert decoder.feed(b"\n\n") == [b"2"]


def test_multi_line_data_is_joined_and_unfinished_event_dropped():
    assert EventDecoder().feed(b"event: x\ndata: a\ndata:b\n\ndata: c\n") == [b"a\nb"]


@for_each("body", [b"data: " + b"x" * 100, b"data: xxxxx\n" * 10])
def test_endless_event_raises_at_the_byte_limit(body):
    with pytest.raises(LimitError, match="more than 50 bytes"):
        EventDecoder(event_bytes_max=50).feed(body)


def test_responses_are_yielded_one_by_one():
    words = [r["word"][0] for r in read(b"".join(map(encode_event, BODIES)))]
    assert words == ["to ", "be ", "", "✓"]


def test_error_event_raises_after_earlier_responses():
    seen = []

    async def main():
        body = encode_event(BODIES[0]) + encode_event(encode_error("model words: no more"))
        async for response in read_responses(pieces_of(body), "http://here"):
            seen.append(response)

    with pytest.raises(EndpointRefusedError, match=r"http://here: the stream failed: model words: no more"):
        asyncio.run(main())
    assert len(seen) == 1


@for_each("event", [b"[]", b"nonsense", orjson.dumps({"model_name": "x"})])
def test_invalid_event_raises_data_error(event):
    with pytest.raises(DataError):
        read(encode_event(event))
