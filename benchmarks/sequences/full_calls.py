"""Section full: many live sequences of a model of 5 ms for each call, and its own full calls."""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median

import numpy as np
from competition import BrokenRunError
from sequence_models import WIDTH, Slow, SlowInProcess, request
from targets import Target, spread

from headrace.core.sequence import SequenceState, States
from headrace.engine.engine import Engine
from headrace.engine.settings import ServeSettings

SHARE_MIN = 0.9
WARM_S = 1.0

One = Callable[[Engine, str, asyncio.Event], Awaitable[None]]


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Steps/s of 1,000 live sequences, relative to as many rows in full calls of the bare model"""
    clients: dict[str, tuple[type, One]] = {
        "a request for each step": (Slow, by_requests),
        "streams": (Slow, by_streams),
        "a request for each step, model in a process": (SlowInProcess, by_requests),
    }
    figures: dict[str, dict[str, list[float]]] = {client: {"bare": [], "ours": []} for client in clients}
    for _ in range(arguments.pairs):
        for client, (model, one) in clients.items():
            figures[client]["bare"].append(bare_steps_per_s(arguments.rows, arguments.seconds))
            figures[client]["ours"].append(steps_per_s(model, one, arguments))
    return [target(client, arguments, found) for client, found in figures.items()], figures


def target(client: str, arguments: argparse.Namespace, found: dict[str, list[float]]) -> Target:
    ratios = [a / b for a, b in zip(found["ours"], found["bare"], strict=True)]
    what = f"{arguments.live:,} live, 5 ms per call of {arguments.rows} rows: {client}"
    measured = f"{median(found['ours']):,.0f} of {median(found['bare']):,.0f} steps/s"
    return Target("full", what, measured, median(ratios), SHARE_MIN, True, spread(ratios))


def bare_steps_per_s(rows: int, seconds: float) -> float:
    model = Slow()
    states = States([SequenceState() for _ in range(rows)])
    for state in states:
        state.begin_step(0, again=False, end=False, parameters={})
    x = np.ones((rows, WIDTH), np.float32)
    began_s = time.perf_counter()
    calls = 0
    while time.perf_counter() - began_s < seconds:
        model.step(states, x)
        calls += 1
    return calls * rows / (time.perf_counter() - began_s)


def steps_per_s(model: type, one: One, arguments: argparse.Namespace) -> float:
    settings = ServeSettings(max_batch_rows=arguments.rows, streams_max=arguments.live)
    engine = Engine(model, name="slow", serving=settings)
    engine.start()
    try:
        return asyncio.run(measured(engine, one, arguments))
    finally:
        engine.stop()


async def measured(engine: Engine, one: One, arguments: argparse.Namespace) -> float:
    finished = asyncio.Event()
    clients = [asyncio.create_task(one(engine, f"s{i}", finished)) for i in range(arguments.live)]
    await asyncio.sleep(WARM_S)
    began, began_s = steps_of(engine), time.perf_counter()
    await asyncio.sleep(arguments.seconds)
    ended, ended_s = steps_of(engine), time.perf_counter()
    finished.set()
    await asyncio.gather(*clients)
    return (ended - began) / (ended_s - began_s)


def steps_of(engine: Engine) -> int:
    sequences = engine.model_statistics().sequences
    assert sequences is not None
    return sequences.steps


async def by_requests(engine: Engine, id: str, finished: asyncio.Event) -> None:
    """Request the next step after each response."""
    steps = 0
    while not finished.is_set():
        response = await engine.infer(request(sequence_id=id, sequence_start=not steps))
        steps += 1
        check(response["output"], steps)


async def by_streams(engine: Engine, id: str, finished: asyncio.Event) -> None:
    """Read the tokens of one long text as they arrive."""
    del id
    tokens = 0
    stream = engine.stream(request(tokens=1 << 20))
    try:
        async for item in stream:
            tokens += 1
            check(item["output"], tokens)
            if finished.is_set():
                break
    finally:
        await stream.aclose()


def check(output: np.ndarray, steps: int) -> None:
    if output[0, 0] != steps:
        raise BrokenRunError(f"step {steps} gave {output[0, 0]}")
