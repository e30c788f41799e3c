"""Which sections there are, what can be asked of them, and what they found."""

import argparse

import million
import node_kills
from inputs import FOLDER
from scaling import section_of
from sections import Section, add_json, asked_of, run_and_print, sections_parser

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
    asked = asked_of(parser_of(description), SECTIONS)
    return run_and_print(SECTIONS, asked, RESULTS)
