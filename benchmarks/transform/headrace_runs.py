"""Run headrace's command. Only this module knows its options, its report and its output files."""

import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from competition import BrokenRunError
from inputs import FOLDER, MODEL, environment
from process_tree import CommandUsage, run_command

Verb = Literal["transform", "stream"]


@dataclass(frozen=True)
class Run:
    """A competitor's run over one input. Rates are of the job alone if reported, else of the
    process.
    """

    rows: int
    rows_per_s: float
    cpu_us_per_row: float
    whole: CommandUsage

    @property
    def whole_rows_per_s(self) -> float:
        """The rate including interpreter, imports, and the engine's start and end."""
        return self.rows / self.whole.wall_s

    @property
    def whole_cpu_us_per_row(self) -> float:
        """The CPU time of the whole process tree, from start to end."""
        return self.whole.cpu_s / self.rows * 1e6


@functools.cache
def offered(verb: Verb) -> frozenset[str]:
    """Return the options of this headrace's command; none if the command does not exist."""
    command = [sys.executable, "-m", "headrace", verb, "--help"]
    shown = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    return frozenset(re.findall(r"--[a-z][a-z-]*", shown.stdout)) if shown.returncode == 0 else frozenset()


def command(
    verb: Verb, source: Path, destination: Path, workers: int = 1, scored_by: str | Path = MODEL
) -> list[str]:
    """Return the command that scores a CSV file or a folder of them, each line with its prediction."""
    # A folder means the objects below it.
    start = [sys.executable, "-m", "headrace", verb, f"{source}/" if source.is_dir() else str(source)]
    model = ["--model", str(scored_by), "--join", "input"]
    if verb == "stream":
        arguments = [*start, "--output", str(destination), *model, "--instances", str(workers)]
    else:
        arguments = [*start, str(destination), *model, "--split", "csv", "--accept", "csv"]
        arguments += ["--workers", str(workers)] if "--workers" in offered(verb) else []
    return arguments + [option for option in ("--json", "--quiet") if option in offered(verb)]


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    """Return the command on one core."""
    return list(command) if core is None else ["taskset", "-c", str(core), *command]


def run(
    verb: Verb,
    source: Path,
    rows: int,
    *,
    workers: int = 1,
    core: int | None = None,
    destination: Path = FOLDER / "transformed",
    model: str | Path = MODEL,
) -> Run:
    """Run headrace over an input of `rows` rows, and check the number of predictions."""
    shutil.rmtree(destination, ignore_errors=True)
    watched = run_command(pinned(command(verb, source, destination, workers, model), core), environment())
    if watched.exit_code:
        raise BrokenRunError(
            f"headrace {verb} exited with status {watched.exit_code}: {last_line(watched.errors)}"
        )
    return run_of(report_in(watched.output, destination), rows, watched)


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")


def report_in(output: str, destination: Path) -> dict:
    """Return the report on standard output, else in the output folder, else an empty one."""
    last = last_line(output)
    if last.startswith("{"):
        return json.loads(last)
    file = destination / "_report.json"
    return json.loads(file.read_text()) if file.exists() else {}


def run_of(report: Mapping, rows: int, watched: CommandUsage) -> Run:
    """Return the figures of a report by `headrace stream`, `limit.py` or a peer."""
    out = next((report[name] for name in ("rows_out", "records_out", "rows") if name in report), rows)
    if out != rows:
        raise BrokenRunError(f"{out} rows out for {rows} rows in")
    cpu_s = report.get("cpu_s", watched.cpu_s)
    return Run(
        rows=rows,
        rows_per_s=report.get("rows_per_s") or rows / watched.wall_s,
        cpu_us_per_row=cpu_s / rows * 1e6,
        whole=watched,
    )


def outputs(verb: Verb, destination: Path = FOLDER / "transformed") -> Iterator[Path]:
    """Return the files with predictions, in the order of the input."""
    pattern = "part-*.csv" if verb == "stream" else "*.out"
    found = sorted(destination.rglob(pattern))
    # Names of headrace's own files begin with an underscore.
    return (p for p in found if not any(part.startswith("_") for part in p.relative_to(destination).parts))
