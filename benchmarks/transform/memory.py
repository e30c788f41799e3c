"""Section memory: the peak memory, for an input and for one four times as large."""

import argparse
from statistics import median

import headrace_runs
from inputs import make_input
from targets import Target, spread

LARGE = 4
PEAK_MB_MAX = 400
GROWTH_MB_MAX = 60


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Peak memory (PSS of the whole process tree) for the rows, and for four times as many"""
    targets, figures = [], {}
    for workers in sorted({1, arguments.workers}):
        peaks = {
            rows: peaks_mb(arguments, rows, workers) for rows in (arguments.rows, LARGE * arguments.rows)
        }
        small, large = peaks.values()
        name = f"{workers} worker{'s' * (workers > 1)}"
        targets += [
            Target(
                "memory", f"MB at most, {name}", f"{max(large):,.0f} MB",
                max(large), PEAK_MB_MAX, False, spread(large)
            ),
            Target(
                "memory",
                f"MB more for {LARGE * arguments.rows:,} rows than for {arguments.rows:,}, {name}",
                f"{median(large):,.0f} against {median(small):,.0f} MB",
                median(large) - median(small),
                GROWTH_MB_MAX,
                False,
                spread([a - b for a, b in zip(large, small, strict=True)]),
            ),
        ]  # fmt: skip
        figures[name] = peaks
    return targets, figures


def peaks_mb(arguments: argparse.Namespace, rows: int, workers: int) -> list[float]:
    source = make_input(f"rows-{rows}.csv", rows)
    runs = [
        headrace_runs.run(arguments.verb, source, rows, workers=workers)
        for _ in range(min(arguments.pairs, 3))
    ]
    return [run.whole.peak_mb for run in runs]
