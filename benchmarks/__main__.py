"""`make bench`: compare headrace with the limit of this machine, in one run, as ratios.

    python benchmarks [SECTION...] [--pairs 5] [--rows 1000000] [--archive-mb 5000]

Sections: rows, script, memory, first, busy. The default is all. Input and output go to
`bench-results/` (about three times the archive; `make clean` removes it), figures to
`bench-results/latest.json`. The exit status is 1 if a target is missed.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from inputs import FOLDER, HERE, MODEL, ROW_BYTES, console, make_input, run_script
from targets import Target, report_targets, spread

SCRIPT_ROWS = 3000
SMALL_ARCHIVE_MB = 50


def headrace(source: Path, *options: object, model: object = MODEL) -> dict:
    """Return the report of one `headrace stream`."""
    output = FOLDER / "scored"
    shutil.rmtree(output, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "headrace",
        "stream",
        str(source),
        "--output",
        str(output),
        "--json",
        "--quiet",
    ]
    if model is not None:
        command += ["--model", str(model)]
    done = subprocess.run([*command, *map(str, options)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def rows_section(arguments: argparse.Namespace) -> Iterator[Target]:
    """A million rows, headrace and the limit in turns; both must write the same bytes."""
    source = make_input(f"rows-{arguments.rows}.csv", arguments.rows)
    limit_out = FOLDER / "limit.csv"
    rates, costs, ours_rows, limit_rows = [], [], [], []
    for _ in range(arguments.pairs):
        limit = run_script("limit.py", source, MODEL, limit_out)
        ours = headrace(source, "--join", "input")
        ours_us = ours["cpu_s"] / ours["rows_out"] * 1e6
        rates.append(ours["rows_per_s"] / limit["rows_per_s"])
        costs.append(ours_us / limit["cpu_us_per_row"])
        ours_rows.append((ours["rows_per_s"], ours_us, ours["peak_memory_mb"]))
        limit_rows.append((limit["rows_per_s"], limit["cpu_us_per_row"], limit["peak_rss_mb"]))
    parts = b"".join(part.read_bytes() for part in sorted((FOLDER / "scored").glob("part-*.csv")))
    assert parts == limit_out.read_bytes(), "the limit wrote different predictions"
    ours, limit = ([median([row[i] for row in found]) for i in range(3)] for found in (ours_rows, limit_rows))
    yield Target(
        "rows",
        "rows/s against the hand-written loop",
        f"{ours[0] / 1e3:,.0f} k against {limit[0] / 1e3:,.0f} k",
        median(rates),
        0.70,
        True,
        spread(rates),
    )
    yield Target(
        "rows",
        "CPU per row against it",
        f"{ours[1]:.2f} µs against {limit[1]:.2f} µs",
        median(costs),
        1.5,
        False,
        spread(costs),
    )


@contextmanager
def served() -> Iterator[str]:
    """Serve the model over HTTP in a separate process. Yield its infer URL."""
    command = [sys.executable, str(HERE / "endpoint_server.py"), str(MODEL)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip()
    finally:
        server.communicate()


def script_section(arguments: argparse.Namespace) -> Iterator[Target]:
    """The usual script with one HTTP request for each row, and `headrace stream`, on one archive."""
    archive = make_input(f"rows-{arguments.rows}.tar", arguments.rows, "--tar")
    local, remote, figures = [], [], []
    with served() as url:
        for _ in range(arguments.pairs):
            script = run_script(
                "script_peer.py", archive, url, FOLDER / "script.csv", "--rows-max", SCRIPT_ROWS
            )
            here = headrace(archive, "--join", "input")["rows_per_s"]
            there = headrace(archive, "--join", "input", "--endpoint", url, model=None)["rows_per_s"]
            local.append(here / script["rows_per_s"])
            remote.append(there / script["rows_per_s"])
            figures.append((here, there, script["rows_per_s"]))
    here, there, theirs = (median([f[i] for f in figures]) for i in range(3))
    yield Target(
        "script",
        "rows/s against tarfile + csv + a request per row",
        f"{here / 1e3:,.0f} k against {theirs / 1e3:,.1f} k",
        median(local),
        20,
        True,
        spread(local),
    )
    yield Target(
        "script",
        "the same, with the same endpoint",
        f"{there / 1e3:,.0f} k against {theirs / 1e3:,.1f} k",
        median(remote),
        20,
        True,
        spread(remote),
    )


def memory_section(arguments: argparse.Namespace) -> Iterator[Target]:
    """Peak memory for an archive, and for one a hundred times as large."""
    peaks = {}
    for megabytes in (SMALL_ARCHIVE_MB, arguments.archive_mb):
        rows = megabytes * 1_000_000 // ROW_BYTES
        archive = make_input(f"archive-{megabytes}.tar", rows, "--tar")
        peaks[megabytes] = [headrace(archive)["peak_memory_mb"] for _ in range(1 if megabytes > 1000 else 3)]
    small, large = (median(found) for found in peaks.values())
    yield Target(
        "memory",
        f"MB more for {arguments.archive_mb:,} MB than for {SMALL_ARCHIVE_MB}",
        f"{large:,.0f} against {small:,.0f} MB",
        large - small,
        60,
        False,
        spread([p - small for p in peaks[arguments.archive_mb]]),
    )


def first_section(arguments: argparse.Namespace) -> Iterator[Target]:
    """Time from the first read to the first prediction."""
    archive = make_input(
        f"archive-{SMALL_ARCHIVE_MB}.tar", SMALL_ARCHIVE_MB * 1_000_000 // ROW_BYTES, "--tar"
    )
    waits = [run_script("first_prediction.py", archive, MODEL)["first_ms"] for _ in range(arguments.pairs)]
    yield Target(
        "first",
        "ms from the first read to the first prediction",
        f"{median(waits):.0f} ms",
        median(waits),
        300,
        False,
        spread(waits),
    )


def busy_section(arguments: argparse.Namespace) -> Iterator[Target]:
    """A model that takes 5 ms for a batch and no CPU, like one on a separate device."""
    source = make_input(f"rows-{arguments.rows}.csv", arguments.rows)
    shares = [
        headrace(source, model=HERE / "slow_model.py")["instance_busy_share"] for _ in range(arguments.pairs)
    ]
    yield Target(
        "busy",
        "busy share of a model of 5 ms per batch",
        f"{median(shares):.1%}",
        median(shares),
        0.95,
        True,
        spread(shares),
    )


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[Target]]] = {
    "rows": rows_section,
    "script": script_section,
    "memory": memory_section,
    "first": first_section,
    "busy": busy_section,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each pair (default 5)")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--archive-mb",
        type=int,
        default=5000,
        help="size of the large archive of section memory in MB (default 5000)",
    )
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(unknown)}: known: {', '.join(SECTIONS)}")
    targets: list[Target] = []
    for name in arguments.sections or SECTIONS:
        console.print(f"[dim]{name}: {SECTIONS[name].__doc__}[/]")
        targets += SECTIONS[name](arguments)
    return report_targets(console, targets, arguments.pairs, FOLDER / "latest.json")


if __name__ == "__main__":
    sys.exit(main())
