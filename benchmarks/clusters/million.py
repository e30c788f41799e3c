"""Section million: a million rows through each runner, counted, and the same bytes."""

import argparse
from statistics import median

from competition import BrokenRunError
from inputs import MODEL, made
from promise import Promise, spread
from runs import use, written

ROWS = 1_000_000
RUNNERS = ("process", "ray", "beam")


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """rows/s of the whole command by two workers of each, against one process of ours."""
    source = made("clusters-million", ROWS, "--object-rows", "50000")
    rates: dict[str, list[float]] = {}
    for _ in range(asked.pairs):
        for runner in ("local", *RUNNERS):
            used = use(runner, 1 if runner == "local" else 2, source, ROWS, MODEL)
            rates.setdefault(runner, []).append(ROWS / used.wall_s)
            if runner != "local" and written(runner) != written("local"):
                raise BrokenRunError(f"{runner}: its output is not that of one process")
    found: list[Promise] = []
    for runner in RUNNERS:
        ratios = [a / b for a, b in zip(rates[runner], rates["local"], strict=True)]
        measured = f"{median(rates[runner]):,.0f} rows/s, start and end included"
        what = f"{runner}, two workers, to one process"
        found.append(Promise("million", what, measured, median(ratios), None, True, spread(ratios)))
    return found, rates
