"""Section split: how fast records are cut, nothing decoded."""

import argparse
from collections.abc import Iterator
from statistics import median

from inputs import made, python
from ours import BrokenRunError
from promise import Promise, spread

QUOTED_ROWS = 400_000


def section(asked: argparse.Namespace) -> tuple[list[Promise], dict]:
    """Records cut out of chunks in memory: numeric lines, numeric CSV, and CSV of quoted text with newlines inside."""
    rows = min(asked.rows, QUOTED_ROWS)
    numbers = made(f"rows-{rows}.csv", rows)
    quoted = made(f"quoted-{rows}.csv", rows, "--quoted")
    promises: list[Promise] = []
    figures = {}
    for what, path, kind, bound in (
        ("lines of numbers", numbers, "jsonl", 500),
        ("CSV of numbers", numbers, "csv", None),
        ("CSV of quoted text", quoted, "csv", 250),
    ):
        found = python("transform/split_speed.py", path, kind, "--rounds", asked.pairs)
        if found["records"] != rows:
            raise BrokenRunError(f"{found['records']} records were cut out of {rows}")
        promises += _promises(what, found["mb_per_s"], bound)
        figures[what] = found
    return promises, figures


def _promises(what: str, rates: dict[str, list[float]], bound: float | None) -> Iterator[Promise]:
    cut, count, csv = (rates[name] for name in ("cut", "count", "csv"))
    speed = f"{median(cut):,.0f} MB/s"
    yield Promise("split", f"MB/s, {what}", speed, median(cut), bound, True, spread(cut))
    for name, others in (("a bare count of newlines", count), ("csv.reader", csv)):
        ratios = [a / b for a, b in zip(cut, others, strict=True)]
        measured = f"{speed} against {median(others):,.0f}"
        yield Promise("split", f"against {name}", measured, median(ratios), None, True, spread(ratios))
