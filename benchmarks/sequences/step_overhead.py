"""Section overhead: steps per second of an almost empty model, clients and engine on one core."""

import argparse
import asyncio
import os
import time
from statistics import median

from sequence_models import Counting, request
from targets import Target, spread

from headrace.engine.engine import Engine
from headrace.engine.settings import ServeSettings

STEPS_PER_S_MIN = 20_000
LIVE = 256


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Steps/s on one core, including the clients: streams, and a request for each step"""
    cores = os.sched_getaffinity(0)
    figures: dict[str, list[float]] = {"streams": [], "a request for each step": []}
    os.sched_setaffinity(0, {min(cores)})
    try:
        for _ in range(arguments.pairs):
            figures["streams"].append(steps_per_s(streams, 400))
            figures["a request for each step"].append(steps_per_s(requests, 100))
    finally:
        os.sched_setaffinity(0, cores)
    return [target(client, found) for client, found in figures.items()], figures


def target(client: str, found: list[float]) -> Target:
    measured = f"{median(found):,.0f} steps/s"
    what = f"steps/s on one core, {LIVE} live: {client}"
    return Target("overhead", what, measured, median(found), STEPS_PER_S_MIN, True, spread(found))


def steps_per_s(one, steps: int) -> float:
    engine = Engine(Counting, name="counting", serving=ServeSettings(streams_max=LIVE))
    engine.start()

    async def run_all() -> float:
        began_s = time.perf_counter()
        await asyncio.gather(*(one(engine, f"s{i}", steps) for i in range(LIVE)))
        return LIVE * steps / (time.perf_counter() - began_s)

    try:
        return asyncio.run(run_all())
    finally:
        engine.stop()


async def streams(engine: Engine, id: str, steps: int) -> None:
    del id
    stream = engine.stream(request(tokens=steps))
    async for _ in stream:
        pass


async def requests(engine: Engine, id: str, steps: int) -> None:
    for step in range(steps):
        await engine.infer(request(sequence_id=id, sequence_start=not step, sequence_end=step == steps - 1))
