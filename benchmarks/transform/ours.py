"""The one place that knows headrace's command line, what it reports, and where its output is."""

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
from process_tree import Watched, watch

Verb = Literal["transform", "stream"]


@dataclass(frozen=True)
class Run:
    """What a competitor did with one input. Rates are of the job alone where it says so itself, else of the process."""

    rows: int
    rows_per_s: float
    cpu_us_per_row: float
    whole: Watched

    @property
    def whole_rows_per_s(self) -> float:
        """Interpreter, imports and the engine's start and end included."""
        return self.rows / self.whole.wall_s

    @property
    def whole_cpu_us_per_row(self) -> float:
        """Of the whole process tree, from its start to its end."""
        return self.whole.cpu_s / self.rows * 1e6


@functools.cache
def offered(verb: Verb) -> frozenset[str]:
    """The options that this headrace's command has; none when it has no such command."""
    command = [sys.executable, "-m", "headrace", verb, "--help"]
    told = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    return frozenset(re.findall(r"--[a-z][a-z-]*", told.stdout)) if told.returncode == 0 else frozenset()


def command(
    verb: Verb, source: Path, destination: Path, workers: int = 1, scored_by: str | Path = MODEL
) -> list[str]:
    """Score a CSV file or a folder of them, each line beside its prediction."""
    # A folder is what is below it.
    start = [sys.executable, "-m", "headrace", verb, f"{source}/" if source.is_dir() else str(source)]
    model = ["--model", str(scored_by), "--join", "input"]
    if verb == "stream":
        given = [*start, "--output", str(destination), *model, "--instances", str(workers)]
    else:
        given = [*start, str(destination), *model, "--split", "csv", "--accept", "csv"]
        given += ["--workers", str(workers)] if "--workers" in offered(verb) else []
    return given + [option for option in ("--json", "--quiet") if option in offered(verb)]


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    """The same command on one core."""
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
    """One run over an input of so many rows, whose count of predictions is checked."""
    shutil.rmtree(destination, ignore_errors=True)
    watched = watch(pinned(command(verb, source, destination, workers, model), core), environment())
    if watched.exit_code:
        raise BrokenRunError(f"headrace {verb} ended with {watched.exit_code}: {last_line(watched.errors)}")
    return run_of(report_in(watched.output, destination), rows, watched)


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "and said nothing")


def report_in(output: str, destination: Path) -> dict:
    """The report on standard output, else the file beside the output, else nothing."""
    last = last_line(output)
    if last.startswith("{"):
        return json.loads(last)
    file = destination / "_report.json"
    return json.loads(file.read_text()) if file.exists() else {}


def run_of(report: Mapping, rows: int, watched: Watched) -> Run:
    """Figures by a report in the words of `headrace stream`, of `limit.py` or of a peer."""
    out = next((report[name] for name in ("rows_out", "records_out", "rows") if name in report), rows)
    if out != rows:
        raise BrokenRunError(f"{out} rows came out of {rows}")
    cpu_s = report.get("cpu_s", watched.cpu_s)
    return Run(
        rows=rows,
        rows_per_s=report.get("rows_per_s") or rows / watched.wall_s,
        cpu_us_per_row=cpu_s / rows * 1e6,
        whole=watched,
    )


def outputs(verb: Verb, destination: Path = FOLDER / "transformed") -> Iterator[Path]:
    """The files with predictions, in the order of the input."""
    pattern = "part-*.csv" if verb == "stream" else "*.out"
    found = sorted(destination.rglob(pattern))
    # What headrace keeps for itself begins with an underscore.
    return (p for p in found if not any(part.startswith("_") for part in p.relative_to(destination).parts))
