"""The results of a benchmark: figures with their targets, as a table and as JSON."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Target:
    """One figure, and its bound if it has a target."""

    section: str
    what: str
    measured: str
    ratio: float
    bound: float | None
    at_least: bool
    spread: str

    @property
    def met(self) -> bool:
        if self.bound is None:
            return True
        return self.ratio >= self.bound if self.at_least else self.ratio <= self.bound


def spread(values: Sequence[float]) -> str:
    return f"{short(min(values))} to {short(max(values))}"


def short(value: float) -> str:
    """Return three digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def targets_table(targets: Sequence[Target]) -> Table:
    table = Table("section", "figure", "measured (medians)", "ratio", "pairs", "target", "met")
    for target in targets:
        bound = "" if target.bound is None else f"{'≥' if target.at_least else '≤'} {target.bound:g}"
        met = "" if target.bound is None else "[green]yes[/]" if target.met else "[bold red]no[/]"
        table.add_row(
            target.section, target.what, target.measured, short(target.ratio), target.spread, bound, met
        )
    return table


def report_targets(
    console: Console, targets: Sequence[Target], pairs: int, path: Path, **more: object
) -> int:
    """Print the targets and write them to a file. Return the exit code: 1 if a target is missed."""
    console.print(targets_table(targets))
    console.print(
        f"[dim]{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end; {pairs} pairs each[/]"
    )
    found = [{**asdict(target), "met": target.met} for target in targets]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"targets": found, **more} if more else found, indent=1))
    return 0 if all(target.met for target in targets) else 1
