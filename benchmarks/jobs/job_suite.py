"""Which sections there are, what can be asked of them, and what they found."""

import argparse

import idle_worker
import large_table
import merged
import short_jobs
import starting
import submits
from inputs import FOLDER
from job_peers import interpreters
from sections import Section, add_json, asked_of, run_and_print, sections_parser

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
    parser = sections_parser(description, SECTIONS, pairs=3)
    add = parser.add_argument
    add_json(parser)
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
    asked = asked_of(parser_of(description), SECTIONS, interpreters)
    return run_and_print(SECTIONS, asked, RESULTS)
