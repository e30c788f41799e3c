"""Measure the time from a model's yield to the client's receipt of the item.

    python benchmarks/serving/first_item.py [--rounds 50]

The models send the time of the yield on the machine's monotonic clock, which the clients share.
There are server-sent events and gRPC, an async and a plain generator, alone and among 31 other
streams. The output is the first item of a stream and the later ones, median and 99th percentile in
milliseconds. The exit status is 1 if the first item takes more than 5 ms at the median, or a lone
one at the 99th percentile.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

import grpc.aio
import numpy as np
import uvloop
from process import Server, free_port
from rich.console import Console
from rich.table import Table

from headrace.protocols import protobuf
from headrace.protocols.sse import EventDecoder

HERE = Path(__file__).parent
FIRST_MS_MAX = 5.0
STREAMS = (1, 32)
MODELS = {"async": "stamps", "plain": "stampsinthread"}
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0]}]}).encode()


async def over_sse(port: int, model: str) -> list[float]:
    """Return the milliseconds of each item of one stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v2/models/{model}/infer_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
    writer.write(head.encode() + BODY)
    await reader.readuntil(b"\r\n\r\n")
    events, took = EventDecoder(), []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        part = await reader.readexactly(size)
        now = time.monotonic_ns()
        await reader.readexactly(2)
        took += [(now - json.loads(e)["outputs"][0]["data"][0]) / 1e6 for e in events.feed(part)]
    writer.close()
    return took


async def over_grpc(channel: grpc.aio.Channel, model: str) -> list[float]:
    request = protobuf.message_class("ModelInferRequest")(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    request.raw_input_contents.append(bytes(4))
    response_class = protobuf.message_class("ModelInferResponse")
    call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(
        iter([request.SerializeToString()])
    )
    took = []
    async for data in call:
        now = time.monotonic_ns()
        response = response_class.FromString(data)
        sent = response.raw_output_contents
        ns = (
            int(np.frombuffer(sent[0], np.int64)[0])
            if sent
            else response.outputs[0].contents.int64_contents[0]
        )
        took.append((now - ns) / 1e6)
    return took


async def measure(ports: tuple[int, int], rounds: int) -> list[dict]:
    results = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[1]}") as channel:
        for listener, read_stream in (
            ("SSE", lambda m: over_sse(ports[0], m)),
            ("gRPC", lambda m: over_grpc(channel, m)),
        ):
            for kind, model in MODELS.items():
                for streams in STREAMS:
                    await asyncio.gather(*(read_stream(model) for _ in range(streams)))
                    first, later = [], []
                    for _ in range(max(rounds // streams, 3)):
                        for took in await asyncio.gather(*(read_stream(model) for _ in range(streams))):
                            first.append(took[0])
                            later += took[1:]
                    results.append({
                        "listener": listener, "generator": kind, "streams": streams,
                        "first_ms": np.percentile(first, [50, 99]).tolist(),
                        "later_ms": np.percentile(later, [50, 99]).tolist(),
                    })  # fmt: skip
    return results


def met(result: dict) -> bool:
    median, worst = result["first_ms"]
    return median <= FIRST_MS_MAX and (result["streams"] > 1 or worst <= FIRST_MS_MAX)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    ports = free_port(), free_port()
    models = [f"{name.lower()}={HERE / 'models.py'}:{name}" for name in ("Stamps", "StampsInThread")]
    command = [sys.executable, "-m", "headrace", "serve", *models, "--metrics-port", "0"]
    server = Server([*command, "--rest-port", str(ports[0]), "--grpc-port", str(ports[1])], ports[0])
    try:
        results = uvloop.run(measure(ports, arguments.rounds))
    finally:
        server.stop()
    table = Table(
        "listener", "generator", "streams", "first item, ms: median", "99 %", "later items: median", "99 %"
    )
    for r in results:
        colour = "green" if met(r) else "red"
        first, later = ([f"{ms:.2f}" for ms in r[key]] for key in ("first_ms", "later_ms"))
        table.add_row(
            r["listener"], r["generator"], str(r["streams"]), *(f"[{colour}]{ms}[/]" for ms in first), *later
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0 if all(map(met, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
