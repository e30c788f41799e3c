"""gRPC as an ASGI application: framing, headers and trailers. Other modules test the methods."""

import asyncio
import gzip
import struct
import zlib
from itertools import pairwise

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import DataError
from headrace.server.grpc_asgi import GrpcAsgi, timeout_s
from headrace.server.grpc_service import GrpcService
from server.grpc_support import (
    FunctionDataplane,
    FunctionModel,
    Response,
    bidi,
    echo,
    in_event_loop,
    infer_request,
    serving,
    unary,
    values,
)

ROWS = np.ones((1, 2), np.float32)
INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMIT = 1 << 20


def framed(message, *, compressed=False):
    return struct.pack(">?I", compressed, len(message)) + message


async def send_call(
    *chunks, path=INFER, headers=(), content_type=b"application/grpc", extensions=None, app=None
):
    """Return the messages that the application sends for a request with these chunks."""
    sent = []
    arriving = [
        {"type": "http.request", "body": c, "more_body": i + 1 < len(chunks)} for i, c in enumerate(chunks)
    ]

    async def receive():
        if arriving:
            return arriving.pop(0)
        return await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    app = app or GrpcAsgi(GrpcService(FunctionDataplane(m=FunctionModel(echo))), message_bytes_max=LIMIT)
    extensions = {"http.response.trailers": {}} if extensions is None else extensions
    scope = {
        "type": "http",
        "path": path,
        "headers": [(b"content-type", content_type), *headers],
        "extensions": extensions,
    }
    await app(scope, receive, send)
    return sent


def call_result(sent):
    """Return status and message of the trailers, and all bytes of the body."""
    assert sent[0]["status"] == 200
    assert sent[0]["trailers"] is True
    trailers = dict(sent[-1]["headers"])
    body = b"".join(m["body"] for m in sent[1:-1])
    return int(trailers[b"grpc-status"]), trailers.get(b"grpc-message", b"").decode(), body


REQUEST = infer_request(ROWS).SerializeToString()


@given(st.lists(st.integers(0, len(REQUEST) + 5), max_size=4))
def test_message_may_be_split_anywhere(cuts):
    whole = framed(REQUEST)
    at = [0, *sorted(cuts), len(whole)]
    chunks = [whole[a:b] for a, b in pairwise(at)]
    status, _, body = call_result(asyncio.run(send_call(*chunks)))
    assert status == 0
    assert struct.unpack_from(">?I", body) == (False, len(body) - 5)
    np.testing.assert_array_equal(values(Response.FromString(body[5:])), ROWS)


@for_each(
    ("chunks", "headers", "status", "why"),
    [
        ((b"",), (), 3, "no request message"),
        ((framed(REQUEST)[:-1],), (), 3, "ends inside"),
        ((struct.pack(">?I", False, LIMIT + 1),), (), 8, f"the limit is {LIMIT}"),
        ((framed(REQUEST, compressed=True),), (), 12, "gzip or deflate"),
        ((framed(REQUEST, compressed=True),), ((b"grpc-encoding", b"gzip"),), 3, "cannot be read"),
        (
            (framed(gzip.compress(REQUEST)[:-4], compressed=True),),
            ((b"grpc-encoding", b"gzip"),),
            3,
            "ends early",
        ),
        (
            (framed(gzip.compress(bytes(LIMIT + 1)), compressed=True),),
            ((b"grpc-encoding", b"gzip"),),
            8,
            "the limit is",
        ),
        ((framed(REQUEST),), ((b"grpc-timeout", b"soon"),), 3, "grpc-timeout"),
    ],
)
@in_event_loop
async def test_malformed_call_has_a_status(chunks, headers, status, why):
    found, message, body = call_result(await send_call(*chunks, headers=headers))
    assert (found, body) == (status, b"")
    assert why in message


@for_each(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
@in_event_loop
async def test_compressed_messages_are_read(encoding, compress):
    sent = await send_call(framed(compress(REQUEST), compressed=True), headers=[(b"grpc-encoding", encoding)])
    assert call_result(sent)[0] == 0


@in_event_loop
async def test_other_requests_go_to_the_fallback():
    assert (await send_call(b"{}", content_type=b"application/json"))[0]["status"] == 415
    assert (await send_call(b"", extensions={}))[0]["status"] == 505

    async def rest(scope, receive, send):
        await send("rest")

    app = GrpcAsgi(GrpcService(FunctionDataplane(m=FunctionModel(echo))), fallback=rest)
    assert await send_call(b"{}", content_type=b"application/json", app=app) == ["rest"]


@in_event_loop
async def test_status_message_is_escaped():
    _, message, _ = call_result(
        await send_call(framed(infer_request(ROWS, model="é\n50%").SerializeToString()))
    )
    assert message.startswith("model %C3%A9%0A50%25: ")


@in_event_loop
async def test_external_cancellation_is_kept():
    async def stuck(_):
        await asyncio.Event().wait()

    plane = FunctionDataplane(m=FunctionModel(stuck))
    task = asyncio.create_task(send_call(framed(REQUEST), app=GrpcAsgi(GrpcService(plane))))
    await plane.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert plane.cancellations.qsize() == 1


@for_each(("value", "seconds"), [(b"5S", 5), (b"20m", 0.02), (b"3M", 180), (b"1H", 3600), (b"8u", 8e-6)])
def test_timeouts_have_units(value, seconds):
    assert timeout_s(value) == pytest.approx(seconds)


@for_each("value", [b"", b"5", b"S", b"-1S", b"123456789S", b"1s", b"1.5S", "\uff15S".encode()])
def test_malformed_timeouts_are_refused(value):
    with pytest.raises(DataError, match="grpc-timeout"):
        timeout_s(value)


@in_event_loop
async def test_streams_and_calls_share_a_connection():
    """Streams and unary calls run concurrently on one connection."""
    async with serving(FunctionDataplane(m=FunctionModel(echo)), "asgi") as channel:
        for _ in range(5):
            await asyncio.gather(*(unary(channel)(infer_request(ROWS)) for _ in range(100)))
        calls = [bidi(channel)([infer_request(ROWS)] * 20) for _ in range(10)]

        async def count(call):
            return len([a async for a in call])

        assert await asyncio.gather(*map(count, calls)) == [20] * 10


def test_synchronous_clients_work():
    """grpcio's blocking client runs in a thread."""

    async def main():
        async with serving(FunctionDataplane(m=FunctionModel(echo)), "asgi") as channel:
            await asyncio.to_thread(blocking, f"127.0.0.1:{channel.port}")

    def blocking(address):
        with grpc.insecure_channel(address) as channel:
            np.testing.assert_array_equal(values(unary(channel)(infer_request(ROWS), timeout=10)), ROWS)
            assert len(list(bidi(channel)(iter([infer_request(ROWS)] * 3), timeout=10))) == 3

    asyncio.run(main())
