"""The sections of a benchmark: their command line, their execution, and the check of their targets."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from competition import BrokenRunError
from inputs import console
from targets import Target, report_targets

BROKEN = 2
"""The exit code of a run in which a competitor failed."""

Section = Callable[[argparse.Namespace], tuple[list[Target], dict]]


def parse_arguments(
    parser: argparse.ArgumentParser,
    sections: Mapping[str, Section],
    interpreters: Callable[[Sequence[str]], object] | None = None,
) -> argparse.Namespace:
    """Return the arguments, or exit with an error for an unknown section or peer."""
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - set(sections):
        parser.error(f"no section {', '.join(unknown)}: known: {', '.join(sections)}")
    try:
        if interpreters is not None:
            interpreters(arguments.peer)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def sections_parser(
    description: str | None, sections: Mapping[str, Section], *, pairs: int
) -> argparse.ArgumentParser:
    """Return the parser of the common arguments."""
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
        help="write the figures to standard output, everything else to standard error",
    )


def run_and_print(sections: Mapping[str, Section], arguments: argparse.Namespace, results: Path) -> int:
    """Run `run_sections`, for a command with `--json`."""
    console.stderr = arguments.json
    code = run_sections(sections, arguments, results)
    if arguments.json and code != BROKEN:
        print(results.read_text())
    return code


def run_sections(sections: Mapping[str, Section], arguments: argparse.Namespace, results: Path) -> int:
    """Run the selected sections, or all. Return the exit code.

    It is 1 if a target is missed, and BROKEN if a run is broken.
    """
    targets: list[Target] = []
    figures = {}
    for name in arguments.sections or sections:
        console.print(f"[dim]{name}: {sections[name].__doc__}[/]")
        try:
            found, figures[name] = sections[name](arguments)
        except BrokenRunError as error:
            console.print(f"[bold red]{name}: {error}[/]")
            return BROKEN
        targets += found
    return report_targets(console, targets, arguments.pairs, results, figures=figures)
