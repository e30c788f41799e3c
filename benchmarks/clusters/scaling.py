"""Sections process, ray and beam: two workers and one, on a model that computes.

Each side processes a small and a large input. The difference of their times gives the rate. The
rest of the small input's time is the start and the end: interpreter, engine, models.
"""

import argparse
import os
from pathlib import Path
from statistics import median

from competition import BrokenRunError
from inputs import make_input
from targets import Target, spread

from runs import RunUsage, run_transform

AT_LEAST = 1.7
SMALL_ROWS = 20_000
HERE = Path(__file__).parent
MODEL = HERE / "busy_model.py"


def section_of(runner: str):
    """Return the section of one runner."""

    def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
        figures: dict[str, list[float]] = {}
        for _ in range(arguments.pairs):
            for name, value in _round(runner, arguments.rows).items():
                figures.setdefault(name, []).append(value)
        middle = {name: median(values) for name, values in figures.items()}
        measured = f"{middle['rate_2']:,.0f} against {middle['rate_1']:,.0f} rows/s"
        cores = f"{middle['engine_cores']:.2f} of {os.cpu_count()} cores used by the engine"
        begins = f"{middle['begin_1']:.1f} and {middle['begin_2']:.1f} s with one worker and two"
        return [
            Target(
                runner,
                "two workers relative to one",
                measured,
                middle["ratio"],
                None,
                True,
                spread(figures["ratio"]),
            ),
            Target(
                runner,
                "the same, relative to the cores that the engine leaves",
                cores,
                middle["ratio_left"],
                AT_LEAST,
                True,
                spread(figures["ratio_left"]),
            ),
            Target(
                runner,
                "start and end",
                begins,
                middle["begin_2"],
                None,
                False,
                spread(figures["begin_2"]),
            ),
        ], figures

    section.__doc__ = f"{runner}: two workers relative to one, on a model that computes"
    return section


def _round(runner: str, rows: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for workers in (1, 2):
        small = run_transform(runner, workers, _input(SMALL_ROWS), SMALL_ROWS, MODEL)
        large = run_transform(runner, workers, _input(rows), rows, MODEL)
        found |= _figures(workers, small, large, rows)
    found["ratio"] = found["rate_2"] / found["rate_1"]
    cores = os.cpu_count() or 1
    found["ratio_left"] = found["ratio"] * cores / (cores - found["engine_cores"])
    return found


def _figures(workers: int, small: RunUsage, large: RunUsage, rows: int) -> dict[str, float]:
    longer_s = large.wall_s - small.wall_s
    if longer_s <= 0:
        raise BrokenRunError(
            f"{rows:,} rows took no longer than {SMALL_ROWS:,}: the machine is busy, or --rows too small"
        )
    rate = (rows - SMALL_ROWS) / longer_s
    return {
        f"rate_{workers}": rate,
        f"begin_{workers}": small.wall_s - SMALL_ROWS / rate,
        "engine_cores": max(0.0, large.engine_cpu_s - small.engine_cpu_s) / longer_s,
    }


def _input(rows: int) -> Path:
    return make_input(f"clusters-{rows}", rows, "--object-rows", "2000")
