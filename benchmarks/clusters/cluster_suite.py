"""The sections of the cluster benchmark, and their command line."""

import argparse

import million
import node_kills
from inputs import FOLDER
from sections import Section, add_json, parse_arguments, run_and_print, sections_parser

from scaling import section_of

SECTIONS: dict[str, Section] = {
    "process": section_of("process"),
    "ray": section_of("ray"),
    "beam": section_of("beam"),
    "million": million.section,
    "kills": node_kills.section,
}
RESULTS = FOLDER / "clusters.json"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = sections_parser(description, SECTIONS, pairs=3)
    parser.add_argument("--rows", type=int, default=300_000, help="rows of the large input (default 300000)")
    add_json(parser)
    return parser


def run(description: str | None) -> int:
    arguments = parse_arguments(parser_of(description), SECTIONS)
    return run_and_print(SECTIONS, arguments, RESULTS)
