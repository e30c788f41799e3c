"""One transform by one runner, and what it used."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from competition import BrokenRunError
from inputs import FOLDER, environment
from ours import command, last_line, outputs, report_in
from process_tree import watch

RUNNERS = {
    "local": [],
    "process": ["--isolation", "process"],
    "ray": ["--runner", "ray"],
    "beam": ["--runner", "beam"],
}


@dataclass(frozen=True)
class Used:
    """`wall_s` is of the whole command; `engine_cpu_s` of all processes that are neither the run nor its workers."""

    wall_s: float
    engine_cpu_s: float
    report: dict


def use(runner: str, workers: int, source: Path, rows: int, model: str | Path) -> Used:
    """Transform; raises BrokenRunError unless the report's counts are those of the input."""
    to = at(runner)
    shutil.rmtree(to, ignore_errors=True)
    given = [*command("transform", source, to, workers, model), *RUNNERS[runner]]
    watched = watch([*given, "--task-bytes", "1m"], environment(), every_s=1.0, memory=False)
    if watched.exit_code:
        raise BrokenRunError(f"{runner} ended with {watched.exit_code}: {last_line(watched.errors)}")
    report = report_in(watched.output, to)
    if (report["records_in"], report["rows_out"], report["rows_failed"]) != (rows, rows, 0):
        raise BrokenRunError(
            f"{runner}: {report['records_in']} records in, {report['rows_out']} rows out of {rows}"
        )
    return Used(watched.wall_s, max(0.0, watched.cpu_s - report["cpu_s"]), report)


def at(runner: str) -> Path:
    """Where a runner's output is."""
    return FOLDER / f"by-{runner}"


def written(runner: str) -> dict[str, bytes]:
    """All that a runner wrote for readers."""
    return {str(p.relative_to(at(runner))): p.read_bytes() for p in outputs("transform", at(runner))}
