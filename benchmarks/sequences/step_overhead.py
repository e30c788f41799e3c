"""Section overhead: steps a second of a model that does next to nothing, clients and engine on one core."""

import argparse
import asyncio
import os
import time
from statistics import median

from promise import Promise, spread
from sequence_models import Counting, request

from headrace.engine.engine import Engine
from headrace.engine.settings import ServeSettings

STEPS_PER_S_MIN = 20_000
LIVE = 256


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """Steps/s on one core, clients included: texts that go on, and a request for each step."""
    cores = os.sched_getaffinity(0)
    figures: dict[str, list[float]] = {"texts that go on": [], "a request for each step": []}
    os.sched_setaffinity(0, {min(cores)})
    try:
        for _ in range(asked.pairs):
            figures["texts that go on"].append(steps_per_s(texts, 400))
            figures["a request for each step"].append(steps_per_s(requests, 100))
    finally:
        os.sched_setaffinity(0, cores)
    return [promise(way, found) for way, found in figures.items()], figures


def promise(way: str, found: list[float]) -> Promise:
    measured = f"{median(found):,.0f} steps/s"
    what = f"steps/s on one core, {LIVE} live: {way}"
    return Promise("overhead", what, measured, median(found), STEPS_PER_S_MIN, True, spread(found))


def steps_per_s(one, steps: int) -> float:
    engine = Engine(Counting, name="counting", serving=ServeSettings(streams_max=LIVE))
    engine.start()

    async def all_of_them() -> float:
        began_s = time.perf_counter()
        await asyncio.gather(*(one(engine, f"s{i}", steps) for i in range(LIVE)))
        return LIVE * steps / (time.perf_counter() - began_s)

    try:
        return asyncio.run(all_of_them())
    finally:
        engine.stop()


async def texts(engine: Engine, id: str, steps: int) -> None:
    del id
    stream = engine.stream(request(tokens=steps))
    async for _ in stream:
        pass


async def requests(engine: Engine, id: str, steps: int) -> None:
    for step in range(steps):
        await engine.ask(request(sequence_id=id, sequence_start=not step, sequence_end=step == steps - 1))
