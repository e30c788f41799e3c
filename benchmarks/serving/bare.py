"""Minimal servers for the same work with the same libraries, to compare headrace with.

    python benchmarks/serving/bare.py KIND PORT

KIND: rest and binary (V2 JSON and binary tensors, parsed, echoed and written), sse (100 events for
each request), batch (a model of 5 ms + 0.05 ms for each row behind an adaptive batcher of 50
lines), grpc, gstream (grpc.aio, messages parsed and written).
"""

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import orjson

ROWS_MAX = 32
DELAY_S = 0.002
EVENTS = 100


async def body_of(receive):
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def respond(send, body, content_type=b"application/json", *extra):
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def parsed(body):
    document = orjson.loads(body)
    tensor = document["inputs"][0]
    return document, np.array(tensor["data"], np.float32).reshape(tensor["shape"])


def printed(array, name="output"):
    tensor = {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.ravel()}
    return orjson.dumps(
        {"model_name": "m", "model_version": "1", "outputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY
    )


async def rest(_scope, receive, send):
    _, array = parsed(await body_of(receive))
    await respond(send, printed(array))


async def binary(scope, receive, send):
    body = await body_of(receive)
    length = int(dict(scope["headers"])[b"inference-header-content-length"])
    document = orjson.loads(body[:length])
    tensor = document["inputs"][0]
    array = np.frombuffer(body, np.float32, offset=length).reshape(tensor["shape"])
    out = {
        "name": "output",
        "shape": array.shape,
        "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }
    text = orjson.dumps(
        {"model_name": "m", "model_version": "1", "outputs": [out]}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    size = (b"inference-header-content-length", b"%d" % len(text))
    await respond(send, text + array.tobytes(), b"application/octet-stream", size)


async def sse(_scope, receive, send):
    await body_of(receive)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    )
    for i in range(EVENTS):
        tensor = {"name": "word", "shape": [1], "datatype": "BYTES", "data": [f"word{i}"]}
        event = orjson.dumps({"model_name": "m", "model_version": "1", "outputs": [tensor]})
        await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class Batcher:
    """A batcher that takes the waiting rows when the model is free.

    It waits briefly for as many rows as were in flight at the last batch.
    """

    def __init__(self):
        self.waiting = []
        self.in_flight = self.last = 0
        self.arrived = asyncio.Event()
        self.pool = ThreadPoolExecutor(1)
        self.task = asyncio.ensure_future(self.run())

    async def predict(self, row):
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((row, future))
        self.in_flight += 1
        self.arrived.set()
        try:
            return await future
        finally:
            self.in_flight -= 1

    async def run(self):
        loop = asyncio.get_running_loop()
        while True:
            await self.arrived.wait()
            ends = loop.time() + DELAY_S
            while len(self.waiting) < min(self.last, ROWS_MAX) and (left := ends - loop.time()) > 0:
                self.arrived.clear()
                try:
                    await asyncio.wait_for(self.arrived.wait(), left)
                except TimeoutError:
                    break
            self.last = self.in_flight
            batch, self.waiting = self.waiting[:ROWS_MAX], self.waiting[ROWS_MAX:]
            if not self.waiting:
                self.arrived.clear()
            out = await loop.run_in_executor(self.pool, slow_model, np.concatenate([r for r, _ in batch]))
            for i, (_, future) in enumerate(batch):
                future.set_result(out[i : i + 1])


def slow_model(x):
    time.sleep(0.005 + 0.00005 * len(x))
    return x


batcher = None


async def batch(_scope, receive, send):
    global batcher  # noqa: PLW0603 - there is one server in this process
    batcher = batcher or Batcher()
    _, array = parsed(await body_of(receive))
    await respond(send, printed(await batcher.predict(array)))


def serve_http(app, port):
    import uvicorn

    uvicorn.run(
        app, port=port, log_level="warning", access_log=False, loop="uvloop", http="httptools",
        lifespan="off", proxy_headers=False, server_header=False,
    )  # fmt: skip


async def serve_grpc(port):
    import grpc.aio

    from headrace.protocols import protobuf

    request_class = protobuf.message_class("ModelInferRequest")
    response_class = protobuf.message_class("ModelInferResponse")

    def response(shape, raw):
        made = response_class(model_name="m", model_version="1")
        made.outputs.add(name="output", datatype="FP32", shape=shape)
        made.raw_output_contents.append(raw)
        return made

    async def infer(request, _context):
        tensor = request.inputs[0]
        array = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tuple(tensor.shape))
        return response(array.shape, array.tobytes())

    async def stream(requests, _context):
        async for _ in requests:
            for i in range(EVENTS):
                made = response_class(model_name="m", model_version="1")
                output = made.outputs.add(name="word", datatype="BYTES", shape=[1])
                output.contents.bytes_contents.append(b"word%d" % i)
                yield made

    encode = response_class.SerializeToString
    handlers = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer, request_class.FromString, encode),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream, request_class.FromString, encode),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main():
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind in ("grpc", "gstream"):
        import uvloop

        uvloop.run(serve_grpc(port))
    else:
        serve_http({"rest": rest, "binary": binary, "sse": sse, "batch": batch}[kind], port)


if __name__ == "__main__":
    main()
