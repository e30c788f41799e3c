"""One transform with one runner, and its usage of time and CPU."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from competition import BrokenRunError
from headrace_runs import command, last_line, outputs, report_in
from inputs import FOLDER, environment
from process_tree import run_command

RUNNERS = {
    "local": [],
    "process": ["--isolation", "process"],
    "ray": ["--runner", "ray"],
    "beam": ["--runner", "beam"],
}


@dataclass(frozen=True)
class RunUsage:
    """The usage of one transform.

    `wall_s` covers the whole command, `engine_cpu_s` all processes that are neither the run nor its
    workers.
    """

    wall_s: float
    engine_cpu_s: float
    report: dict


def run_transform(runner: str, workers: int, source: Path, rows: int, model: str | Path) -> RunUsage:
    """Run a transform. Raise BrokenRunError unless the report's counts are those of the input."""
    destination = output_folder(runner)
    shutil.rmtree(destination, ignore_errors=True)
    arguments = [*command("transform", source, destination, workers, model), *RUNNERS[runner]]
    watched = run_command([*arguments, "--task-bytes", "1m"], environment(), every_s=1.0, memory=False)
    if watched.exit_code:
        raise BrokenRunError(f"{runner} exited with status {watched.exit_code}: {last_line(watched.errors)}")
    report = report_in(watched.output, destination)
    if (report["records_in"], report["rows_out"], report["rows_failed"]) != (rows, rows, 0):
        raise BrokenRunError(
            f"{runner}: {report['records_in']} records in, {report['rows_out']} rows out of {rows}"
        )
    return RunUsage(watched.wall_s, max(0.0, watched.cpu_s - report["cpu_s"]), report)


def output_folder(runner: str) -> Path:
    """Return the folder of a runner's output."""
    return FOLDER / f"by-{runner}"


def output_files(runner: str) -> dict[str, bytes]:
    """Return a runner's published output, by relative path."""
    return {
        str(p.relative_to(output_folder(runner))): p.read_bytes()
        for p in outputs("transform", output_folder(runner))
    }
