"""How a run ended, for people and for machines: its report, or the one line of its error."""

import re

import click
import orjson

from headrace.core.block import Failure
from headrace.core.errors import HeadraceError
from headrace.pipeline.progress import Progress
from headrace.pipeline.report import Report

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and the number of SIGINT."""
_BROKE = 1


def exit_status(report: Report) -> int:
    """What the command exits with: the report's own code, or that of an interruption."""
    return INTERRUPTED if report.status == "drained" else report.exit_code


def say_error(error: HeadraceError, *, json_lines: bool) -> int:
    """Say it in one line on standard error, with `json_lines` on standard output too; the exit status."""
    text = one_line(str(error))
    if json_lines:
        line = {"event": "error", "type": type(error).__name__, "message": text, "exit_code": _BROKE}
        click.echo(orjson.dumps(line))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
    return _BROKE


def say_report(report: Report, progress: Progress | None = None, *, json_lines: bool) -> int:
    """Say it on standard output, as one JSON line or as a line a figure; the exit status.

    `progress` tells people what went wrong first: most often it is what went wrong everywhere.
    """
    code = exit_status(report)
    if json_lines:
        line = {"event": "report", **report.to_json(), "exit_code": code}
        click.echo(orjson.dumps(line))
        return code
    for name, value in _figures(report, progress or Progress()).items():
        if value:
            click.echo(f"{click.style(f'{name:<14}', bold=True)}  {value}")
    return code


def _figures(report: Report, progress: Progress) -> dict[str, str]:
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
        "replayed": f"{report.records_replayed:,} records, for the states of sequences"
        if report.records_replayed
        else "",
        "rows/s": f"{report.rows_per_s:,.0f} over {report.elapsed_s:.2f} s",
        "instances busy": f"{report.instance_busy_share:.0%}, {calls:,} call{'s' if calls != 1 else ''}",
        "peak memory": f"{report.peak_memory_mb:,.0f} MB",
        "status": report.status if report.status == "complete" else "stopped: go on with --resume",
    }


def broken_line(failure: Failure) -> str:
    """An object that broke, in one line. Most reasons name the object themselves, and the place in it that matters."""
    name = failure.position.member or failure.position.object
    return one_line(failure.why if name in failure.why else f"{name}: {failure.why}")


def one_line(text: str) -> str:
    """A text without its line ends."""
    return re.sub(r"\s*\n\s*", " ", text)
