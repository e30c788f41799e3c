"""``headrace stream``: score objects as streams, and write the predictions in order."""

import logging
import sys
from typing import Any

import click

from headrace.app.streaming import OpenedRun, execute, open_run, open_watch, see_modules_here
from headrace.cli.ending import exit_status, say_error, say_report
from headrace.cli.interrupt import Interrupts
from headrace.cli.logs import configure_logs
from headrace.cli.options import (
    FLOW_OPTIONS,
    OUTPUT_OPTIONS,
    SEQUENCE_OPTIONS,
    SOURCE_OPTIONS,
    check_usage,
    if_exists,
    predictor_options,
    stream_settings,
)
from headrace.cli.progress import Display, choose_style
from headrace.core.errors import HeadraceError
from headrace.pipeline.report import Report

_EPILOG = """\b
Examples:
  Score a tar.gz of CSV files with an ONNX model; the CSVs have a header:
    headrace stream s3://bucket/day.tar.gz --model churn.onnx --header names \\
        --columns age,income,tenure --output s3://bucket/scored/
  Keep every input line beside its prediction, as JSON Lines:
    headrace stream data/ --members '*.csv' --model churn.onnx --join input \\
        --output-format jsonl --output scored/
  Ask an endpoint elsewhere, 32 requests at a time:
    headrace stream data.jsonl --endpoint http://host:8080/v2/models/churn \\
        --in-flight 32 --output scored/
  A model that keeps a state for each user, to the last record of a session:
    headrace stream events.csv --model sessions.py --header names --sequence user \\
        --sequence-end closed --output scored/
  Go on after a kill, or after Ctrl-C:
    headrace stream ... --output scored/ --resume
  Score what arrives below a prefix, until stopped:
    headrace stream s3://bucket/in/ --model churn.onnx --output s3://bucket/out/ --watch

\b
Exit status: 0 all records predicted; 3 some records failed (see *.failed.jsonl); 1 the run
broke, or an object could not be read to its end; 2 wrong usage; 130 stopped by Ctrl-C (resume
with --resume).
"""

_log = logging.getLogger("headrace.cli")


@click.command("stream", epilog=_EPILOG, short_help="Score objects as streams; predictions in order.")
@click.argument("source", nargs=-1, required=True)
@click.option("--model", metavar="MODEL", help="model.onnx, file.py, file.py:Class or module:Class.")
@click.option("--endpoint", metavar="URL", help="A model served elsewhere, instead of --model.")
@click.option(
    "--output", required=True, metavar="DEST", help="A folder or prefix for the predictions' parts."
)
@SOURCE_OPTIONS
@SEQUENCE_OPTIONS
@FLOW_OPTIONS
@OUTPUT_OPTIONS
def stream_command(source: tuple[str, ...], **given: Any) -> None:
    """Read SOURCE as byte streams, run a model over its records, write predictions in source order.

    SOURCE is an object, a prefix that ends with /, a glob, or manifest:URI, on s3://, gs://, az://,
    http(s)://, file://, or a plain path. Objects are never downloaded whole.
    """
    check_usage(click.get_current_context())
    configure_logs(given["verbose"])
    try:
        code = _stream(source[0] if len(source) == 1 else list(source), given)
    except HeadraceError as error:
        _log.debug("run broke", exc_info=True)
        code = say_error(error, json_lines=given["json_lines"])
    sys.stdout.flush()
    raise SystemExit(code)


def _stream(source: str | list[str], given: dict[str, Any]) -> int:
    see_modules_here()
    opened = open_run(
        source,
        output=given["output"],
        model=given["model"],
        endpoint=given["endpoint"],
        settings=stream_settings(given),
        options=predictor_options(given),
        if_exists=if_exists(given),
    )
    json_lines: bool = given["json_lines"]
    style = choose_style(json_lines=json_lines, quiet=given["quiet"])
    display = Display(style, opened.run.progress, opened.predictor.statistics)
    if given["watch"]:
        return _watch(opened, display, poll_s=given["poll_s"], json_lines=json_lines)
    with Interrupts(opened.run.drain):
        report = execute(opened, display)
    return say_report(report, opened.run.progress, json_lines=json_lines)


def _watch(opened: OpenedRun, display: Display, *, poll_s: float, json_lines: bool) -> int:
    """Until stopped: a report after every poll that found something; the last one's exit status."""
    watch = open_watch(opened, poll_s=poll_s)
    code = 0

    def say(report: Report) -> None:
        nonlocal code
        code = exit_status(report)
        say_report(report, opened.run.progress, json_lines=json_lines)

    with Interrupts(watch.stop), opened, display:
        watch.serve(say)
    return code
