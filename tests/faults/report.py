"""The report of the fault tests: one line per run, with the terms of job queue benchmarks, and a total."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PATH = "HEADRACE_FAULTS_REPORT"
"""The environment variable that names the file to which each run adds its line."""
SUMMED = ("jobs", "jobs_lost", "duplicate_results", "duplicate_executions")
COLUMNS = (*SUMMED, "recovery_seconds", "completion_rate_vs_baseline")

Line = dict[str, Any]


def add_line(path: Path, line: Line) -> None:
    """Append a line in one write, so that several test processes may share the file."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[Line]:
    """Return the lines in the order of the fault list."""
    texts = path.read_text().splitlines() if path.exists() else []
    return sorted(map(json.loads, texts), key=lambda line: (line["fault"], line["run"]))


def total(lines: Sequence[Line]) -> Line:
    """Return the sums of the counts and the worst of the measurements."""
    return {
        **{name: sum(line[name] for line in lines) for name in SUMMED},
        "recovery_seconds": max(_known(lines, "recovery_seconds"), default=None),
        "completion_rate_vs_baseline": min(_known(lines, "completion_rate_vs_baseline"), default=None),
    }


def holds(lines: Sequence[Line]) -> bool:
    """Return True if there was a run, and no job was lost or had two results."""
    return bool(lines) and all(line["jobs_lost"] == 0 == line["duplicate_results"] for line in lines)


def as_json(lines: Sequence[Line]) -> str:
    """Return the report as one JSON document."""
    return json.dumps({"runs": list(lines), "total": total(lines), "holds": holds(lines)}, indent=2)


def as_table(lines: Sequence[Line]) -> str:
    """Return the report as a text table; "-" stands for a missing measurement."""
    head = ["fault", "run", *COLUMNS]
    rows = [[str(line["fault"]), line["run"], *map(_shown, (line[c] for c in COLUMNS))] for line in lines]
    rows.append(["", "total", *map(_shown, total(lines).values())])
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


def _known(lines: Iterable[Line], name: str) -> list[float]:
    return [line[name] for line in lines if line[name] is not None]


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
