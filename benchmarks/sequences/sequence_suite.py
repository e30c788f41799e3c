"""The sections of the sequence benchmark, and their command line."""

import argparse

import full_calls
import lone_step
import neighbours
import step_overhead
from inputs import FOLDER
from sections import Section, add_json, parse_arguments, run_and_print, sections_parser

SECTIONS: dict[str, Section] = {
    "full": full_calls.section,
    "neighbours": neighbours.section,
    "overhead": step_overhead.section,
    "lone": lone_step.section,
}
RESULTS = FOLDER / "sequences.json"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = sections_parser(description, SECTIONS, pairs=3)
    add = parser.add_argument
    add("--seconds", type=float, default=2.0, help="how long each side is measured (default 2)")
    add("--live", type=int, default=1000, help="full: sequences that live at once (default 1000)")
    add("--rows", type=int, default=32, help="full: rows of a full call (default 32)")
    add_json(parser)
    return parser


def run(description: str | None) -> int:
    arguments = parse_arguments(parser_of(description), SECTIONS)
    return run_and_print(SECTIONS, arguments, RESULTS)
