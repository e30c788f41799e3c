"""Which sections there are, what can be asked of them, and what they found."""

import argparse
from collections.abc import Callable
from pathlib import Path

import memory
import objects
import ours
import rows
import splitting
from competitors import interpreters
from inputs import FOLDER, console
from promise import Promise, close

Section = Callable[[argparse.Namespace], tuple[list[Promise], dict]]
SECTIONS: dict[str, Section] = {
    "rows": rows.section,
    "objects": objects.section,
    "split": splitting.section,
    "memory": memory.section,
}
RESULTS = FOLDER / "transform.json"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--pairs", type=int, default=5, help="rounds of each comparison (default 5)")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--objects", type=int, default=10_000, help="of ten rows each (default 10,000)")
    parser.add_argument(
        "--objects-at", type=Path, metavar="FOLDER", help="where they are and come out (default: in memory)"
    )
    parser.add_argument("--workers", type=int, default=2, help="beside one worker (default 2)")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help="an interpreter that has that peer"
    )
    parser.add_argument("--peer-rows", type=int, help="rows for slow peers (default: enough for their rate)")
    parser.add_argument(
        "--verb", choices=("transform", "stream"), default="transform", help="headrace's command to measure"
    )
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
    promises: list[Promise] = []
    figures = {}
    for name in asked.sections or SECTIONS:
        console.print(f"[dim]{name}: {SECTIONS[name].__doc__}[/]")
        try:
            found, figures[name] = SECTIONS[name](asked)
        except ours.BrokenRunError as error:
            console.print(f"[bold red]{name}: {error}[/]")
            return 2
        promises += found
    return close(console, promises, asked.pairs, RESULTS, figures=figures)
