"""Print the result of a run, or its error."""

import re

import click
import orjson

from headrace.core.block import Failure
from headrace.core.errors import HeadraceError
from headrace.pipeline.progress import RunProgress
from headrace.pipeline.report import Report

INTERRUPTED = 130
"""The exit status after Ctrl-C, as in shells: 128 plus the number of SIGINT."""
_EXIT_FAILED = 1


def exit_status(report: Report) -> int:
    """Return the command's exit status: the report's exit code, or 130 after an interruption."""
    return INTERRUPTED if report.status == "drained" else report.exit_code


def print_error(error: HeadraceError, *, json_lines: bool) -> int:
    """Print an error as one line to standard error and return the exit status.

    With `json_lines`, also print a JSON line to standard output.
    """
    text = one_line(str(error))
    if json_lines:
        line = {"event": "error", "type": type(error).__name__, "message": text, "exit_code": _EXIT_FAILED}
        click.echo(orjson.dumps(line))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
    return _EXIT_FAILED


def print_report(report: Report, progress: RunProgress | None = None, *, json_lines: bool) -> int:
    """Print a report to standard output and return the exit status.

    The report is one JSON line, or one line for each figure. `progress` adds the first failure,
    since it is often the cause of all failures.
    """
    status = exit_status(report)
    if json_lines:
        line = {"event": "report", **report.to_json(), "exit_code": status}
        click.echo(orjson.dumps(line))
        return status
    for name, value in _figures(report, progress or RunProgress()).items():
        if value:
            click.echo(f"{click.style(f'{name:<14}', bold=True)}  {value}")
    return status


def _figures(report: Report, progress: RunProgress) -> dict[str, str]:
    failed, calls = f"{report.rows_failed:,}", report.model_calls
    failure, broken = progress.first_failure, progress.first_broken
    any_failed = report.rows_failed or report.objects_broken
    return {
        "predictions": f"{report.output} ({report.parts} part{'s' if report.parts != 1 else ''})",
        "records in": f"{report.records_in:,} = {report.rows_out:,} out + {failed} failed",
        "failures": f"{report.output}part-*.failed.jsonl" if any_failed else "",
        "first failure": one_line(f"{failure.position}: {failure.why}") if failure else "",
        "broken objects": f"{report.objects_broken:,}" if report.objects_broken else "",
        "first broken": broken_line(broken) if broken else "",
        "replayed": f"{report.records_replayed:,} records, to restore sequence states"
        if report.records_replayed
        else "",
        "rows/s": f"{report.rows_per_s:,.0f} over {report.elapsed_s:.2f} s",
        "instances busy": f"{report.instance_busy_share:.0%}, {calls:,} call{'s' if calls != 1 else ''}",
        "peak memory": f"{report.peak_memory_mb:,.0f} MB",
        "status": report.status if report.status == "complete" else "stopped: continue with --resume",
    }


def broken_line(failure: Failure) -> str:
    """Return one line about a broken object; most reasons already name the object."""
    name = failure.position.member or failure.position.object
    return one_line(failure.why if name in failure.why else f"{name}: {failure.why}")


def one_line(text: str) -> str:
    """Return the text with its line breaks replaced by spaces."""
    return re.sub(r"\s*\n\s*", " ", text)
