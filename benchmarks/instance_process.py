"""Measure the cost of a separate model process: calls in pairs, and items of streams.

python benchmarks/instance_process.py
"""

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from headrace.core import InferRequest, Tensor, current_call
from headrace.engine import Engine
from headrace.engine.backend import CallInputs
from headrace.engine.local_backend import LocalBackend
from headrace.engine.process.parent import ProcessBackend
from headrace.engine.recipe import make_recipe
from headrace.engine.settings import ServeSettings
from headrace.runtimes.load import model_factory

MODEL = """\
import numpy as np
from headrace import Model


class Firsts(Model):
    def predict(self, x):
        return x[:, :1].copy()

    async def predict_stream(self, requests):
        async for request in requests:
            for i in range(int(request["n"][0])):
                yield {"i": np.array([i])}
"""
SIZES_BYTES = (4096, 2**20, 16 * 2**20)
ITEMS = 50_000


def calls(make) -> None:
    """Time pairs of calls, one in this process and one in a separate process."""
    local, separate = LocalBackend(make, "m"), ProcessBackend(make_recipe(make, "m"), "m")
    try:
        for size in SIZES_BYTES:
            x = np.ones((max(1, size // 4096), min(size, 4096) // 4), np.float32)
            pairs = [(_call_s(local, x), _call_s(separate, x)) for _ in range(200 if size < 2**24 else 40)]
            extra = sorted(b - a for a, b in pairs)
            print(
                f"{size / 2**20:8.3f} MB: this process {median(a for a, _ in pairs) * 1e6:7.0f} µs, "
                f"separate process {median(b for _, b in pairs) * 1e6:7.0f} µs, "
                f"extra {median(extra) * 1e6:5.0f} µs (p10 {extra[len(extra) // 10] * 1e6:.0f}, "
                f"p90 {extra[-len(extra) // 10] * 1e6:.0f})"
            )
    finally:
        separate.close()
        local.close()


def _call_s(backend, x) -> float:
    began = time.perf_counter()
    backend.call(CallInputs(({"x": x},), len(x)), current_call())
    return time.perf_counter() - began


async def streams(make, isolation) -> None:
    """Measure one stream, then fifty at once."""
    engine = Engine(make, name="m", serving=ServeSettings(isolation=isolation))
    engine.start()
    try:
        for count in (1, 50):
            began = time.perf_counter()
            received = await asyncio.gather(*[_items(engine, ITEMS // count) for _ in range(count)])
            rate = sum(received) / (time.perf_counter() - began)
            print(f"{isolation}: {count} streams, {rate:,.0f} items/s")
    finally:
        engine.stop()


async def _items(engine, count) -> int:
    stream = engine.stream(InferRequest((Tensor("n", np.array([count])),)))
    received = 0
    try:
        while items := await stream.next_batch():
            received += len(items)
    finally:
        await stream.aclose()
    return received


async def requests(make) -> None:
    """Time requests of 1 MB through `Engine.infer`, in pairs of engines."""
    engines = [Engine(make, name="m", serving=ServeSettings(isolation=i)) for i in ("thread", "process")]
    for engine in engines:
        engine.start()
    try:
        request = InferRequest((Tensor("x", np.ones((256, 1024), np.float32)),))
        extra: list[float] = []
        for _ in range(200):
            took: list[float] = []
            for engine in engines:
                began = time.perf_counter()
                await engine.infer(request)
                took.append(time.perf_counter() - began)
            extra.append(took[1] - took[0])
        print(f"request of 1 MB: {median(extra) * 1e6:.0f} µs extra in a separate process")
    finally:
        for engine in engines:
            engine.stop()


def main() -> None:
    """Run all measurements."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "firsts.py"
        path.write_text(MODEL)
        make = model_factory(str(path)).make
        calls(make)
        asyncio.run(requests(make))
        for isolation in ("thread", "process"):
            asyncio.run(streams(make, isolation))


if __name__ == "__main__":
    main()
