"""Section neighbours: the time between two tokens of a text, alone and among others."""

import argparse
import asyncio
import time
from contextlib import suppress
from statistics import median

from sequence_models import Slow, request
from targets import Target, spread

from headrace.engine.engine import Engine
from headrace.engine.settings import ServeSettings

NEIGHBOURS = 63
GROWTH_MAX = 1.3


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Milliseconds between two tokens of one text, among 63 others and alone; a call costs the same"""
    figures: dict[str, list[float]] = {"alone": [], "among": []}
    for _ in range(arguments.pairs):
        figures["alone"].append(token_ms(0, arguments.seconds))
        figures["among"].append(token_ms(NEIGHBOURS, arguments.seconds))
    ratios = [a / b for a, b in zip(figures["among"], figures["alone"], strict=True)]
    measured = f"{median(figures['among']):.2f} against {median(figures['alone']):.2f} ms"
    what = f"ms between two tokens, {NEIGHBOURS} neighbours against none, 5 ms per call"
    return [Target("neighbours", what, measured, median(ratios), GROWTH_MAX, False, spread(ratios))], figures


def token_ms(neighbours: int, seconds: float) -> float:
    engine = Engine(Slow, name="slow", serving=ServeSettings(max_batch_rows=NEIGHBOURS + 1))
    engine.start()
    try:
        return asyncio.run(measured(engine, neighbours, seconds))
    finally:
        engine.stop()


async def measured(engine: Engine, neighbours: int, seconds: float) -> float:
    others = [asyncio.create_task(read_stream(engine)) for _ in range(neighbours)]
    gaps_s: list[float] = []
    stream = engine.stream(request(tokens=1 << 20))
    await anext(stream)
    last_s = began_s = time.perf_counter()
    async for _ in stream:
        now = time.perf_counter()
        gaps_s.append(now - last_s)
        last_s = now
        if now - began_s > seconds:
            break
    await stream.aclose()
    for other in others:
        other.cancel()
        with suppress(asyncio.CancelledError):
            await other
    return median(gaps_s) * 1000


async def read_stream(engine: Engine) -> None:
    stream = engine.stream(request(tokens=1 << 20))
    try:
        async for _ in stream:
            pass
    finally:
        await stream.aclose()
