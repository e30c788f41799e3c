"""Which sections there are, what can be asked of them, and what they found."""

import argparse
from collections.abc import Callable

import idle_worker
import large_table
import merged
import short_jobs
import starting
import submits
from competition import BrokenRunError
from inputs import FOLDER, console
from job_peers import interpreters
from promise import Promise, close

Section = Callable[[argparse.Namespace], tuple[list[Promise], dict]]
SECTIONS: dict[str, Section] = {
    "starting": starting.section,
    "submits": submits.section,
    "short": short_jobs.section,
    "merged": merged.section,
    "large": large_table.section,
    "idle": idle_worker.section,
}
RESULTS = FOLDER / "jobs.json"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    add("--pairs", type=int, default=3, help="rounds of each comparison (default 3)")
    add(
        "--json",
        action="store_true",
        help="write the figures to standard output, and all else to standard error",
    )
    add("--starts", type=int, default=150, help="starting: jobs of a round (default 150)")
    add("--submit-s", type=float, default=2.0, help="submits: how long by each way (default 2)")
    add("--jobs", type=int, default=2000, help="short: jobs of a round, for everybody (default 2000)")
    add("--job-ms", type=float, choices=(0, 1), default=1, help="short: what a job takes (default 1)")
    add(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help="an interpreter that has that peer"
    )
    add("--merged-jobs", type=int, default=160, help="merged: jobs of a round, 16 at a time (default 160)")
    add("--ended", type=int, default=1_000_000, help="large: ended jobs (default 1,000,000)")
    add("--pending", type=int, default=100_000, help="large: jobs that wait (default 100,000)")
    add("--claims", type=int, default=400, help="large: claims of a round (default 400)")
    add("--idle-s", type=float, default=20.0, help="idle: for how long (default 20)")
    return parser


def run(description: str | None) -> int:
    parser = parser_of(description)
    asked = parser.parse_args()
    if unknown := set(asked.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    try:
        interpreters(asked.peer)
    except ValueError as error:
        parser.error(str(error))
    console.stderr = asked.json
    promises: list[Promise] = []
    figures = {}
    for name in asked.sections or SECTIONS:
        console.print(f"[dim]{name}: {SECTIONS[name].__doc__}[/]")
        try:
            found, figures[name] = SECTIONS[name](asked)
        except BrokenRunError as error:
            console.print(f"[bold red]{name}: {error}[/]")
            return 2
        promises += found
    code = close(console, promises, asked.pairs, RESULTS, figures=figures)
    if asked.json:
        print(RESULTS.read_text())
    return code
