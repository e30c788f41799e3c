"""The sections of the transform benchmark, and their command line."""

import argparse
from pathlib import Path

import many
import memory
import objects
import rows
import splitting
from competitors import interpreters
from inputs import FOLDER
from sections import Section, parse_arguments, run_sections, sections_parser

SECTIONS: dict[str, Section] = {
    "rows": rows.section,
    "objects": objects.section,
    "split": splitting.section,
    "memory": memory.section,
    "many": many.section,
}
RESULTS = FOLDER / "transform.json"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = sections_parser(description, SECTIONS, pairs=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--objects", type=int, default=10_000, help="number of objects of ten rows each (default 10,000)"
    )
    parser.add_argument(
        "--many",
        type=int,
        nargs="+",
        metavar="OBJECTS",
        default=[10_000, 100_000, 1_000_000],
        help="numbers of objects of the section many (default 10,000, 100,000 and 1,000,000)",
    )
    parser.add_argument(
        "--objects-at",
        type=Path,
        metavar="FOLDER",
        help="folder of the objects and their outputs (default: in memory)",
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="number of workers, measured beside one worker (default 2)"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help="interpreter of a peer"
    )
    parser.add_argument("--peer-rows", type=int, help="rows for slow peers (default: enough for their rate)")
    parser.add_argument(
        "--verb", choices=("transform", "stream"), default="transform", help="measured command of headrace"
    )
    return parser


def run(description: str | None) -> int:
    arguments = parse_arguments(parser_of(description), SECTIONS, interpreters)
    return run_sections(SECTIONS, arguments, RESULTS)
