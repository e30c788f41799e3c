"""Print the result of a run or a transform, or its error."""

from typing import TYPE_CHECKING

import click
import orjson

from headrace.core.errors import HeadraceError
from headrace.reports.report import Report, one_line
from headrace.runs.progress import RunProgress

if TYPE_CHECKING:  # streams do not need transforms
    from headrace.reports.report import Report

INTERRUPTED = 130
"""The exit status after Ctrl-C, as in shells: 128 plus the number of SIGINT."""
WRONG_USAGE = 2
"""The exit status for wrong usage, as click exits."""
_EXIT_FAILED = 1


def exit_status(report: "Report") -> int:
    """Return the command's exit status: the report's exit code, or 130 after an interruption."""
    return INTERRUPTED if report.status == "drained" else report.exit_code


def print_error(error: HeadraceError, *, json_lines: bool, exit_code: int = _EXIT_FAILED) -> int:
    """Print an error as one line to standard error and return the exit status.

    With `json_lines`, also print a JSON line to standard output.
    """
    text = one_line(str(error))
    if json_lines:
        line = {"event": "error", "type": type(error).__name__, "message": text, "exit_code": exit_code}
        click.echo(orjson.dumps(line))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
    return exit_code


def print_report(
    report: "Report",
    progress: RunProgress | None = None,
    *,
    json_lines: bool,
    page: str | None = None,
) -> int:
    """Print a report to standard output and return the exit status.

    The report is one JSON line, or one line for each figure. `progress` adds the first failure,
    since it is often the cause of all failures. `page` is the URI of the HTML report.
    """
    status = exit_status(report)
    if json_lines:
        line = {"event": "report", **report.to_json(), "exit_code": status}
        click.echo(orjson.dumps(line))
        return status
    print_figures(report.figures(progress) | {"page": page or ""})
    return status


def print_figures(figures: dict[str, str]) -> None:
    """Print the figures that are not empty by name. A figure may have several lines."""
    for name, value in figures.items():
        if value:
            first, *more = value.splitlines()
            click.echo(f"{click.style(f'{name:<14}', bold=True)}  {first}")
            for line in more:
                click.echo(f"{'':<14}  {line}")
