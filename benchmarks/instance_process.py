"""What a process of its own costs a model: calls in pairs with the same model in this process, and items of streams.

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
from headrace.engine.backend import LocalBackend
from headrace.engine.process import ProcessBackend
from headrace.engine.recipe import recipe_of
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
    """Pairs of calls, one here and one there."""
    here, there = LocalBackend(make, "m"), ProcessBackend(recipe_of(make, "m"), "m")
    try:
        for size in SIZES_BYTES:
            x = np.ones((max(1, size // 4096), min(size, 4096) // 4), np.float32)
            pairs = [(_call_s(here, x), _call_s(there, x)) for _ in range(200 if size < 2**24 else 40)]
            more = sorted(b - a for a, b in pairs)
            print(
                f"{size / 2**20:8.3f} MB: here {median(a for a, _ in pairs) * 1e6:7.0f} µs, "
                f"there {median(b for _, b in pairs) * 1e6:7.0f} µs, "
                f"more {median(more) * 1e6:5.0f} µs (p10 {more[len(more) // 10] * 1e6:.0f}, p90 {more[-len(more) // 10] * 1e6:.0f})"
            )
    finally:
        there.close()
        here.close()


def _call_s(backend, x) -> float:
    began = time.perf_counter()
    backend.call(({"x": x},), len(x), "", current_call(), fresh=False)
    return time.perf_counter() - began


async def streams(make, isolation) -> None:
    """One stream, then fifty at once."""
    engine = Engine(make, name="m", serving=ServeSettings(isolation=isolation))
    engine.start()
    try:
        for count in (1, 50):
            began = time.perf_counter()
            got = await asyncio.gather(*[_items(engine, ITEMS // count) for _ in range(count)])
            rate = sum(got) / (time.perf_counter() - began)
            print(f"{isolation}: {count} streams, {rate:,.0f} items/s")
    finally:
        engine.stop()


async def _items(engine, count) -> int:
    stream = engine.stream(InferRequest((Tensor("n", np.array([count])),)))
    got = 0
    try:
        while items := await stream.some():
            got += len(items)
    finally:
        await stream.aclose()
    return got


async def asks(make) -> None:
    """1 MB by `Engine.ask`, in pairs of engines."""
    engines = [Engine(make, name="m", serving=ServeSettings(isolation=i)) for i in ("thread", "process")]
    for engine in engines:
        engine.start()
    try:
        asked = InferRequest((Tensor("x", np.ones((256, 1024), np.float32)),))
        more: list[float] = []
        for _ in range(200):
            took: list[float] = []
            for engine in engines:
                began = time.perf_counter()
                await engine.ask(asked)
                took.append(time.perf_counter() - began)
            more.append(took[1] - took[0])
        print(f"ask of 1 MB: {median(more) * 1e6:.0f} µs more in a process")
    finally:
        for engine in engines:
            engine.stop()


def main() -> None:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "firsts.py"
        path.write_text(MODEL)
        make = model_factory(str(path)).make
        calls(make)
        asyncio.run(asks(make))
        for isolation in ("thread", "process"):
            asyncio.run(streams(make, isolation))


if __name__ == "__main__":
    main()
