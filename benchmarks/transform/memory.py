"""Section memory: the highest memory, for an input and for one four times as large."""

import argparse
from statistics import median

import ours
from inputs import made
from promise import Promise, spread

LARGE = 4
PEAK_MB_MAX = 400
GROWTH_MB_MAX = 60


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """The highest memory (PSS of the whole process tree) for the rows, and for four times as many."""
    promises, figures = [], {}
    for workers in sorted({1, asked.workers}):
        peaks = {rows: peaks_mb(asked, rows, workers) for rows in (asked.rows, LARGE * asked.rows)}
        small, large = peaks.values()
        name = f"{workers} worker{'s' * (workers > 1)}"
        promises += [
            Promise(
                "memory", f"MB at most, {name}", f"{max(large):,.0f} MB", max(large), PEAK_MB_MAX, False, spread(large)
            ),
            Promise(
                "memory",
                f"MB more for {LARGE * asked.rows:,} rows than for {asked.rows:,}, {name}",
                f"{median(large):,.0f} against {median(small):,.0f} MB",
                median(large) - median(small),
                GROWTH_MB_MAX,
                False,
                spread([a - b for a, b in zip(large, small, strict=True)]),
            ),
        ]  # fmt: skip
        figures[name] = peaks
    return promises, figures


def peaks_mb(asked: argparse.Namespace, rows: int, workers: int) -> list[float]:
    source = made(f"rows-{rows}.csv", rows)
    runs = [ours.run(asked.verb, source, rows, workers=workers) for _ in range(min(asked.pairs, 3))]
    return [run.whole.peak_mb for run in runs]
