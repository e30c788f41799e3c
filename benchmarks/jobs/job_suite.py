"""The sections of the job benchmark, and their command line."""

import argparse

import idle_worker
import large_table
import merged
import scale_limits
import short_jobs
import starting
import submits
from inputs import FOLDER
from job_peers import interpreters
from sections import Section, add_json, parse_arguments, run_and_print, sections_parser

SECTIONS: dict[str, Section] = {
    "starting": starting.section,
    "submits": submits.section,
    "short": short_jobs.section,
    "merged": merged.section,
    "large": large_table.section,
    "idle": idle_worker.section,
    "scale": scale_limits.section,
}
RESULTS = FOLDER / "jobs.json"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = sections_parser(description, SECTIONS, pairs=3)
    add = parser.add_argument
    add_json(parser)
    add("--starts", type=int, default=150, help="starting: jobs per round (default 150)")
    add("--submit-s", type=float, default=2.0, help="submits: seconds for each client (default 2)")
    add("--jobs", type=int, default=2000, help="short: jobs per round of each competitor (default 2000)")
    add("--job-ms", type=float, choices=(0, 1), default=1, help="short: duration of a job in ms (default 1)")
    add("--peer", action="append", default=[], metavar="NAME=PYTHON", help="interpreter of a peer")
    add("--merged-jobs", type=int, default=160, help="merged: jobs per round, 16 at a time (default 160)")
    add("--ended", type=int, default=1_000_000, help="large, scale: ended jobs (default 1,000,000)")
    add("--pending", type=int, default=100_000, help="large: pending jobs (default 100,000)")
    add("--claims", type=int, default=400, help="large: claims per round (default 400)")
    add("--idle-s", type=float, default=20.0, help="idle: duration in seconds (default 20)")
    add("--scale-s", type=float, default=2.0, help="scale: seconds for each statement (default 2)")
    add("--scale-workers", type=int, default=1000, help="scale: registered workers (default 1,000)")
    add("--scale-jobs", type=int, default=5000, help="scale: jobs whose bytes are measured (default 5,000)")
    add("--scale-webhooks", type=int, default=400, help="scale: webhooks for each count (default 400)")
    add("--scale-objects", type=int, default=20_000, help="scale: listed objects (default 20,000)")
    return parser


def run(description: str | None) -> int:
    arguments = parse_arguments(parser_of(description), SECTIONS, interpreters)
    return run_and_print(SECTIONS, arguments, RESULTS)
