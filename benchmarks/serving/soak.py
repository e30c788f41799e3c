"""A mix of requests: check that the server's memory stays constant and every request is answered.

    python benchmarks/serving/soak.py [--requests 500000] [--connections 16]

The mix: inference, bad requests, unknown models, streams read to the end, streams closed after an
event, requests whose client disconnects before the response, and cancelled gRPC calls. One server
has three models. The output is the memory (USS in MB: private memory) after every tenth, and the
counts of responses. The exit status is 1 if the memory grows by more than 10 % after the first
fifth, as it does with a leak of 20 bytes per request.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import uvloop

HERE = Path(__file__).parent
GROWTH_MAX = 0.1
WARM_SHARE = 0.2
CANCELLING_CHANNELS = 4
"""Channels whose calls are all cancelled.

Under load, the core of grpc keeps some cancelled calls for a while, about 14 KB each, up to the limit of
concurrent calls of a connection (`GrpcAioSettings.streams_max`). With fewer channels, the server would
still warm up long after its first fifth.
"""


def body(columns: int) -> bytes:
    values = [round(random.random(), 4) for _ in range(columns)]
    return json.dumps(
        {"inputs": [{"name": "x", "shape": [1, columns], "datatype": "FP32", "data": values}]}
    ).encode()


def post(model: str, verb: str, content: bytes) -> bytes:
    head = f"POST /v2/models/{model}/{verb} HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


WORDS = json.dumps({"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["go"]}]}).encode()
# Share of the mix, request, read bytes before the client disconnects (None: all), expected status.
MIX = [
    (0.88, post("echo", "infer", body(16)), None, 200),
    (0.03, post("echo", "infer", b"{not json"), None, 400),
    (0.02, post("echo", "infer", body(7)), None, 400),
    (0.01, post("nobody", "infer", body(16)), None, 404),
    (0.02, post("words", "infer_stream", WORDS), None, 200),
    (0.02, post("words", "infer_stream", WORDS), 1, 200),
    (0.02, post("slow", "infer", body(16)), 0, 0),
]


class Client:
    """One connection after another, with one request at a time."""

    def __init__(self, port: int, counts: Counter) -> None:
        self.port = port
        self.counts = counts
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send_request(self) -> None:
        ((_, request, disconnect_after, expected),) = random.choices(MIX, [m[0] for m in MIX])
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(request)
        if disconnect_after == 0:
            await asyncio.sleep(0)
            self.disconnect()
            self.counts["disconnected"] += 1
            return
        status, chunked, length = await self.head(reader)
        self.counts["expected" if status == expected else f"wrong: {status}"] += 1
        if disconnect_after == 1:
            await reader.read(64)
            self.disconnect()
        elif chunked:
            await reader.readuntil(b"0\r\n\r\n")
        else:
            await reader.readexactly(length)

    async def head(self, reader: asyncio.StreamReader) -> tuple[int, bool, int]:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = (
            int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length: " in head else 0
        )
        return int(head[9:12]), b"chunked" in head, length

    def disconnect(self) -> None:
        assert self.streams is not None
        self.streams[1].transport.abort()
        self.streams = None


async def cancelled_calls(port: int, counts: Counter, until: asyncio.Event) -> None:
    import grpc.aio

    from headrace.protocols import protobuf

    request = protobuf.message_class("ModelInferRequest")(model_name="slow")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(bytes(64))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        while not until.is_set():
            pending = call(request.SerializeToString())
            await asyncio.sleep(random.random() * 0.01)
            pending.cancel()
            counts["cancelled over gRPC"] += 1


def uss_mb(process: psutil.Process) -> float:
    tree = [process, *process.children(recursive=True)]
    return sum(p.memory_full_info().uss for p in tree) / 1e6


async def soak(ports: tuple[int, int], process: psutil.Process, requests: int, connections: int) -> int:
    counts: Counter = Counter()
    remaining, tenth, memory = requests, requests // 10, []
    finished = asyncio.Event()

    async def client() -> None:
        nonlocal remaining
        connection = Client(ports[0], counts)
        while remaining > 0:
            remaining -= 1
            if remaining % tenth == 0:
                memory.append(uss_mb(process))
                print(f"{requests - remaining:>9,} requests  {memory[-1]:7.1f} MB", flush=True)
            await connection.send_request()

    began = time.monotonic()
    cancelling = asyncio.gather(
        *(cancelled_calls(ports[1], counts, finished) for _ in range(CANCELLING_CHANNELS))
    )
    await asyncio.gather(*(client() for _ in range(connections)))
    finished.set()
    await cancelling
    took = time.monotonic() - began
    warm = memory[int(len(memory) * WARM_SHARE) - 1]
    growth = max(memory[int(len(memory) * WARM_SHARE) :]) / warm - 1
    print(f"{requests / took:,.0f} requests/s; {dict(counts)}")
    print(f"memory after warm-up {warm:.1f} MB, at most {growth:+.1%}")
    wrong = [k for k in counts if k.startswith("wrong")]
    return 1 if growth > GROWTH_MAX or wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=500_000)
    parser.add_argument("--connections", type=int, default=16)
    arguments = parser.parse_args()
    models = [f"{name.lower()}={HERE / 'models.py'}:{name}" for name in ("Echo", "Slow", "Words")]
    command = [sys.executable, "-m", "headrace", "serve", *models]
    command += ["--rest-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--log-format", "json"]
    server = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    addresses = {}
    for line in server.stderr:
        if line.strip() == "ready":
            break
        if not line.startswith("{"):
            addresses.update([line.split()])
    ports = tuple(int(addresses[listener].rsplit(":", 1)[1]) for listener in ("rest", "grpc"))
    try:
        return uvloop.run(soak(ports, psutil.Process(server.pid), arguments.requests, arguments.connections))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


if __name__ == "__main__":
    sys.exit(main())
