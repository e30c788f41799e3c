"""A benchmark's sections, one after another, and whether what they found keeps the promises."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from competition import BrokenRunError
from inputs import console
from promise import Promise, close

BROKEN = 2
"""The exit code of a run in which somebody did not do the job."""

Section = Callable[[argparse.Namespace], tuple[list[Promise], dict]]


def asked_of(
    parser: argparse.ArgumentParser,
    sections: Mapping[str, Section],
    interpreters: Callable[[Sequence[str]], object] | None = None,
) -> argparse.Namespace:
    """What the command line asks, with sections and peers that there are; else it ends with what is wrong."""
    asked = parser.parse_args()
    if unknown := set(asked.sections) - set(sections):
        parser.error(f"no section {', '.join(unknown)}: choose from {', '.join(sections)}")
    try:
        if interpreters is not None:
            interpreters(asked.peer)
    except ValueError as error:
        parser.error(str(error))
    return asked


def sections_parser(
    description: str | None, sections: Mapping[str, Section], *, pairs: int
) -> argparse.ArgumentParser:
    """What every benchmark of several sections can be asked."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(sections))
    parser.add_argument(
        "--pairs", type=int, default=pairs, help=f"rounds of each comparison (default {pairs})"
    )
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="write the figures to standard output, and all else to standard error",
    )


def run_and_print(sections: Mapping[str, Section], asked: argparse.Namespace, results: Path) -> int:
    """What `run_sections` does, for a command that has `--json`."""
    console.stderr = asked.json
    code = run_sections(sections, asked, results)
    if asked.json and code != BROKEN:
        print(results.read_text())
    return code


def run_sections(sections: Mapping[str, Section], asked: argparse.Namespace, results: Path) -> int:
    """Run what is asked, or all; the exit code: 1 when a promise is broken, BROKEN when a run is."""
    promises: list[Promise] = []
    figures = {}
    for name in asked.sections or sections:
        console.print(f"[dim]{name}: {sections[name].__doc__}[/]")
        try:
            found, figures[name] = sections[name](asked)
        except BrokenRunError as error:
            console.print(f"[bold red]{name}: {error}[/]")
            return BROKEN
        promises += found
    return close(console, promises, asked.pairs, results, figures=figures)
