"""How a run ended, for people and for machines: its report, or the one line of its error."""

import re

import click
import orjson

from headrace.core.errors import HeadraceError
from headrace.pipeline.report import Report

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and the number of SIGINT."""
_BROKE = 1


def exit_status(report: Report) -> int:
    """What the command exits with: the report's own code, or that of an interruption."""
    return INTERRUPTED if report.status == "drained" else report.exit_code


def say_error(error: HeadraceError, *, json_lines: bool) -> int:
    """Say it in one line on standard error, with `json_lines` on standard output too; the exit status."""
    text = re.sub(r"\s*\n\s*", " ", str(error))
    if json_lines:
        line = {"event": "error", "type": type(error).__name__, "message": text, "exit_code": _BROKE}
        click.echo(orjson.dumps(line))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
    return _BROKE


def say_report(report: Report, *, json_lines: bool) -> int:
    """Say it on standard output, as one JSON line or as a line a figure; the exit status."""
    code = exit_status(report)
    if json_lines:
        line = {"event": "report", **report.to_json(), "exit_code": code}
        click.echo(orjson.dumps(line))
        return code
    for name, value in _figures(report).items():
        if value:
            click.echo(f"{click.style(f'{name:<14}', bold=True)}  {value}")
    return code


def _figures(report: Report) -> dict[str, str]:
    failed = f"{report.rows_failed:,}"
    any_failed = report.rows_failed or report.objects_broken
    return {
        "predictions": f"{report.output} ({report.parts} part{'s' if report.parts != 1 else ''})",
        "records in": f"{report.records_in:,} = {report.rows_out:,} out + {failed} failed",
        "failures": f"{report.output}part-*.failed.jsonl" if any_failed else "",
        "broken objects": f"{report.objects_broken:,}" if report.objects_broken else "",
        "rows/s": f"{report.rows_per_s:,.0f} over {report.elapsed_s:.2f} s",
        "instances busy": f"{report.instance_busy_share:.0%}, {report.model_calls:,} calls",
        "peak memory": f"{report.peak_memory_mb:,.0f} MB",
        "status": report.status if report.status == "complete" else "stopped: go on with --resume",
    }
