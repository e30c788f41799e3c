"""Section million: a million rows with each runner, with counts and bytes checked."""

import argparse
from statistics import median

from competition import BrokenRunError
from inputs import MODEL, make_input
from targets import Target, spread

from runs import output_files, run_transform

ROWS = 1_000_000
RUNNERS = ("process", "ray", "beam")


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """rows/s of the whole command with two workers of each runner, relative to one headrace process"""
    source = make_input("clusters-million", ROWS, "--object-rows", "50000")
    rates: dict[str, list[float]] = {}
    for _ in range(arguments.pairs):
        for runner in ("local", *RUNNERS):
            used = run_transform(runner, 1 if runner == "local" else 2, source, ROWS, MODEL)
            rates.setdefault(runner, []).append(ROWS / used.wall_s)
            if runner != "local" and output_files(runner) != output_files("local"):
                raise BrokenRunError(f"{runner}: the output differs from that of one process")
    found: list[Target] = []
    for runner in RUNNERS:
        ratios = [a / b for a, b in zip(rates[runner], rates["local"], strict=True)]
        measured = f"{median(rates[runner]):,.0f} rows/s, start and end included"
        what = f"{runner}, two workers, relative to one process"
        found.append(Target("million", what, measured, median(ratios), None, True, spread(ratios)))
    return found, rates
