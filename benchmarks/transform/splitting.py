"""Section split: the speed of cutting records, without decoding."""

import argparse
from collections.abc import Iterator
from statistics import median

from headrace_runs import BrokenRunError
from inputs import make_input, run_script
from targets import Target, spread

QUOTED_ROWS = 400_000


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Records cut from chunks in memory: numeric lines, numeric CSV, quoted CSV with newlines"""
    rows = min(arguments.rows, QUOTED_ROWS)
    numbers = make_input(f"rows-{rows}.csv", rows)
    quoted = make_input(f"quoted-{rows}.csv", rows, "--quoted")
    targets: list[Target] = []
    figures = {}
    for what, path, kind, bound in (
        ("lines of numbers", numbers, "jsonl", 500),
        ("CSV of numbers", numbers, "csv", None),
        ("CSV of quoted text", quoted, "csv", 250),
    ):
        found = run_script("transform/split_speed.py", path, kind, "--rounds", arguments.pairs)
        if found["records"] != rows:
            raise BrokenRunError(f"{found['records']} records were cut from {rows} rows")
        targets += _targets(what, found["mb_per_s"], bound)
        figures[what] = found
    return targets, figures


def _targets(what: str, rates: dict[str, list[float]], bound: float | None) -> Iterator[Target]:
    cut, count, csv = (rates[name] for name in ("cut", "count", "csv"))
    speed = f"{median(cut):,.0f} MB/s"
    yield Target("split", f"MB/s, {what}", speed, median(cut), bound, True, spread(cut))
    for name, others in (("a bare count of newlines", count), ("csv.reader", csv)):
        ratios = [a / b for a, b in zip(cut, others, strict=True)]
        measured = f"{speed} against {median(others):,.0f}"
        yield Target("split", f"against {name}", measured, median(ratios), None, True, spread(ratios))
