"""Section full: many live sequences of a model of 5 ms a call, beside its own full calls, one after another."""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median

import numpy as np
from competition import BrokenRunError
from promise import Promise, spread
from sequence_models import WIDTH, Apart, Slow, request

from headrace.core.sequence import SequenceState, States
from headrace.engine.engine import Engine
from headrace.engine.settings import ServeSettings

SHARE_MIN = 0.9
WARM_S = 1.0

One = Callable[[Engine, str, asyncio.Event], Awaitable[None]]


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """Steps/s of 1,000 live sequences, against as many rows in full calls of the bare model."""
    ways: dict[str, tuple[type, One]] = {
        "a request for each step": (Slow, by_requests),
        "texts that go on": (Slow, by_texts),
        "a request for each step, model in a process": (Apart, by_requests),
    }
    figures: dict[str, dict[str, list[float]]] = {way: {"bare": [], "ours": []} for way in ways}
    for _ in range(asked.pairs):
        for way, (model, one) in ways.items():
            figures[way]["bare"].append(bare_steps_per_s(asked.rows, asked.seconds))
            figures[way]["ours"].append(steps_per_s(model, one, asked))
    return [promise(way, asked, found) for way, found in figures.items()], figures


def promise(way: str, asked: argparse.Namespace, found: dict[str, list[float]]) -> Promise:
    ratios = [a / b for a, b in zip(found["ours"], found["bare"], strict=True)]
    what = f"{asked.live:,} live, 5 ms a call of {asked.rows} rows: {way}"
    measured = f"{median(found['ours']):,.0f} of {median(found['bare']):,.0f} steps/s"
    return Promise("full", what, measured, median(ratios), SHARE_MIN, True, spread(ratios))


def bare_steps_per_s(rows: int, seconds: float) -> float:
    model = Slow()
    states = States([SequenceState() for _ in range(rows)])
    for state in states:
        state.begin(0, again=False, end=False, parameters={})
    x = np.ones((rows, WIDTH), np.float32)
    began_s = time.perf_counter()
    calls = 0
    while time.perf_counter() - began_s < seconds:
        model.step(states, x)
        calls += 1
    return calls * rows / (time.perf_counter() - began_s)


def steps_per_s(model: type, one: One, asked: argparse.Namespace) -> float:
    settings = ServeSettings(max_batch_rows=asked.rows, streams_max=asked.live)
    engine = Engine(model, name="slow", serving=settings)
    engine.start()
    try:
        return asyncio.run(measured(engine, one, asked))
    finally:
        engine.stop()


async def measured(engine: Engine, one: One, asked: argparse.Namespace) -> float:
    over = asyncio.Event()
    clients = [asyncio.create_task(one(engine, f"s{i}", over)) for i in range(asked.live)]
    await asyncio.sleep(WARM_S)
    began, began_s = steps_of(engine), time.perf_counter()
    await asyncio.sleep(asked.seconds)
    ended, ended_s = steps_of(engine), time.perf_counter()
    over.set()
    await asyncio.gather(*clients)
    return (ended - began) / (ended_s - began_s)


def steps_of(engine: Engine) -> int:
    sequences = engine.model_statistics().sequences
    assert sequences is not None
    return sequences.steps


async def by_requests(engine: Engine, id: str, over: asyncio.Event) -> None:
    """Asks for the next step when it has the last one's answer."""
    steps = 0
    while not over.is_set():
        answer = await engine.ask(request(sequence_id=id, sequence_start=not steps))
        steps += 1
        check(answer["output"], steps)


async def by_texts(engine: Engine, id: str, over: asyncio.Event) -> None:
    """Takes one long text's tokens, as they come."""
    del id
    tokens = 0
    stream = engine.stream(request(tokens=1 << 20))
    try:
        async for item in stream:
            tokens += 1
            check(item["output"], tokens)
            if over.is_set():
                break
    finally:
        await stream.aclose()


def check(output: np.ndarray, steps: int) -> None:
    if output[0, 0] != steps:
        raise BrokenRunError(f"step {steps} gave {output[0, 0]}")
