"""Section many: time and memory over the number of objects, and the time until the first record."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import headrace_runs
from competition import BrokenRunError
from inputs import FOLDER, MODEL, console, environment, make_input
from targets import Target

OBJECT_ROWS = 10
LINKS_MAX = 60_000
"""File systems limit the number of names of one file."""
PEAK_MB_MAX = 300
FIRST_RECORD_S_MAX = 10
TIME_RATIO_MAX = 1.25
"""The limit of the time of an object among the most objects, relative to that among the fewest."""


@dataclass
class Curve:
    """The figures of a run over `objects` objects."""

    objects: int
    wall_s: float
    peak_mb: float
    first_record_s: float


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Time, memory and first record of 10,000, 100,000 and 1,000,000 objects; and a resumption"""
    curves: list[Curve] = []
    resumed_s = 0.0
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.objects_at or FOLDER) as folder:
        for count in sorted(arguments.many):
            source, out = Path(folder) / f"{count}", Path(folder) / "out"
            make_objects(source, count)
            curves.append(whole_run(arguments.verb, source, out, count))
            console.print(f"[dim]{curves[-1]}[/]")
            if count == max(arguments.many):
                resumed_s = resumption(arguments.verb, source, out)
            shutil.rmtree(source)
            shutil.rmtree(out)
    least, most = curves[0], curves[-1]
    ratio = (most.wall_s / most.objects) / (least.wall_s / least.objects)
    of = f"{most.objects:,} objects"
    targets = [
        Target("many", f"MB at most, {of}", f"{most.peak_mb:,.0f} MB", most.peak_mb, PEAK_MB_MAX, False, ""),
        Target(
            "many", f"time of an object, {of} against {least.objects:,}",
            f"{most.wall_s:,.0f} and {least.wall_s:,.0f} s", ratio, TIME_RATIO_MAX, False, "",
        ),
        Target(
            "many", f"seconds to the first record, {of}", f"{most.first_record_s:.1f} s",
            most.first_record_s, FIRST_RECORD_S_MAX, False, "",
        ),
        Target(
            "many", f"seconds to a new record when resumed, {of}", f"{resumed_s:.1f} s",
            resumed_s, FIRST_RECORD_S_MAX, False, "",
        ),
    ]  # fmt: skip
    return targets, {"curve": [asdict(curve) for curve in curves]}


def make_objects(folder: Path, count: int) -> None:
    """Make a folder of `count` small objects, a thousand in each of its folders."""
    (data,) = make_input(
        f"objects-1-of-{OBJECT_ROWS}", OBJECT_ROWS, "--object-rows", str(OBJECT_ROWS)
    ).iterdir()
    text = data.read_bytes()
    first = folder
    for number in range(count):
        path = folder / f"{number // 1000:04d}" / f"{number:07d}.csv"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        if number % LINKS_MAX == 0:
            first = path
            first.write_bytes(text)
        else:
            os.link(first, path)


def whole_run(verb: headrace_runs.Verb, source: Path, out: Path, count: int) -> Curve:
    began_s, first_s = time.monotonic(), 0.0
    with started(verb, source, out) as process:
        report: dict = {}
        for line in events(process):
            report = line
            if not first_s and line.get("records", 0):
                first_s = time.monotonic() - began_s
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or report.get("rows_out") != count * OBJECT_ROWS:
        raise BrokenRunError(f"status {process.returncode}, {report.get('rows_out')} rows of {count} objects")
    wall_s = time.monotonic() - began_s
    # A short run ends before it reports any progress.
    return Curve(count, wall_s, usage.ru_maxrss / 1024, first_s or wall_s)


def resumption(verb: headrace_runs.Verb, source: Path, out: Path) -> float:
    """Kill a run at its half, resume it, and return the seconds until it scores a new record."""
    with started(verb, source, out) as process:
        for line in events(process):
            if not line.get("is_listing", False) and 2 * line["objects_read"] >= line["objects_total"] > 0:
                break
        process.send_signal(signal.SIGKILL)
    began_s = time.monotonic()
    with started(verb, source, out, "--resume") as process:
        before: int | None = None
        for line in events(process):
            before = line["records"] if before is None and line.get("records") else before
            if before is not None and line.get("records", 0) > before:
                return time.monotonic() - began_s
    raise BrokenRunError("the resumed run scored no record")


@contextmanager
def started(
    verb: headrace_runs.Verb, source: Path, out: Path, mode: str = "--overwrite"
) -> Iterator[subprocess.Popen]:
    command = headrace_runs.command(verb, source, out, scored_by=MODEL)
    command = [*(option for option in command if option != "--quiet"), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


def events(process: subprocess.Popen) -> Iterator[dict]:
    """Yield the progress of a command every second, and its report at the end."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"{"):
            yield json.loads(line)
