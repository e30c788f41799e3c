"""The report of the faults: a line for each run, in the words that benchmarks of job queues use, and one for all."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PATH = "HEADRACE_FAULTS_REPORT"
"""The variable that names the file to which each run adds its line."""
SUMMED = ("jobs", "jobs_lost", "duplicate_results", "duplicate_executions")
COLUMNS = (*SUMMED, "recovery_seconds", "completion_rate_vs_baseline")

Line = dict[str, Any]


def add_line(path: Path, line: Line) -> None:
    """One write, so that several processes may."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[Line]:
    """In the order of the fault list."""
    texts = path.read_text().splitlines() if path.exists() else []
    return sorted(map(json.loads, texts), key=lambda line: (line["fault"], line["run"]))


def total(lines: Sequence[Line]) -> Line:
    """Sums of what is counted, the worst of what is measured."""
    return {
        **{name: sum(line[name] for line in lines) for name in SUMMED},
        "recovery_seconds": max(_known(lines, "recovery_seconds"), default=None),
        "completion_rate_vs_baseline": min(_known(lines, "completion_rate_vs_baseline"), default=None),
    }


def holds(lines: Sequence[Line]) -> bool:
    """Whether nothing was lost and nothing doubled, in at least one run."""
    return bool(lines) and all(line["jobs_lost"] == 0 == line["duplicate_results"] for line in lines)


def as_json(lines: Sequence[Line]) -> str:
    """One document."""
    return json.dumps({"runs": list(lines), "total": total(lines), "holds": holds(lines)}, indent=2)


def as_table(lines: Sequence[Line]) -> str:
    """For people; "-" where there was nothing to measure."""
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
