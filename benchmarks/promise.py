"""What a benchmark says: figures beside their bounds, as a table and as JSON."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Promise:
    """One figure, and its bound if one was promised."""

    section: str
    what: str
    measured: str
    ratio: float
    bound: float | None
    at_least: bool
    spread: str

    @property
    def kept(self) -> bool:
        if self.bound is None:
            return True
        return self.ratio >= self.bound if self.at_least else self.ratio <= self.bound


def spread(values: Sequence[float]) -> str:
    return f"{short(min(values))} to {short(max(values))}"


def short(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def shown(promises: Sequence[Promise]) -> Table:
    table = Table("section", "what", "measured (medians)", "ratio", "pairs", "promised", "kept")
    for p in promises:
        bound = "" if p.bound is None else f"{'≥' if p.at_least else '≤'} {p.bound:g}"
        kept = "" if p.bound is None else "[green]yes[/]" if p.kept else "[bold red]no[/]"
        table.add_row(p.section, p.what, p.measured, short(p.ratio), p.spread, bound, kept)
    return table


def close(console: Console, promises: Sequence[Promise], pairs: int, path: Path, **more: object) -> int:
    """Show the promises and keep them in a file; the exit code: 1 when one is broken."""
    console.print(shown(promises))
    console.print(
        f"[dim]{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end; {pairs} pairs each[/]"
    )
    found = [{**asdict(p), "kept": p.kept} for p in promises]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"promises": found, **more} if more else found, indent=1))
    return 0 if all(p.kept for p in promises) else 1
