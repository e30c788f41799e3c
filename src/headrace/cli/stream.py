"""``headrace stream``: score objects as streams and write the predictions in source order."""

import logging
import sys
from typing import Any

import click

from headrace.app.streaming import OpenedRun, add_current_folder_to_path, execute, open_run, open_watch
from headrace.cli.groups import complete_files
from headrace.cli.interrupt import InterruptHandler
from headrace.cli.logs import configure_logs
from headrace.cli.options import (
    FLOW_OPTIONS,
    OUTPUT_OPTIONS,
    SEQUENCE_OPTIONS,
    SOURCE_OPTIONS,
    check_usage,
    predictor_options,
    stream_settings,
)
from headrace.cli.progress import ProgressDisplay, choose_style
from headrace.cli.reports import exit_status, print_error, print_report
from headrace.core.errors import HeadraceError
from headrace.runs.stream_report import Report

_EPILOG = """\b
Examples:
  Score a tar.gz of CSV files that have a header, with an ONNX model:
    headrace stream s3://bucket/day.tar.gz --model churn.onnx --header names \\
        --columns age,income,tenure --output s3://bucket/scored/
  Write every input line beside its prediction, as JSON Lines:
    headrace stream data/ --members '*.csv' --model churn.onnx --join input \\
        --output-format jsonl --output scored/
  Use a model endpoint with 32 concurrent requests:
    headrace stream data.jsonl --endpoint http://host:8080/v2/models/churn \\
        --in-flight-max 32 --output scored/
  Use a model with a state for each user, until the last record of a session:
    headrace stream events.csv --model sessions.py --header names --sequence user \\
        --sequence-end closed --output scored/
  Resume after a kill or Ctrl-C:
    headrace stream ... --output scored/ --resume
  Score new objects below a prefix until stopped:
    headrace stream s3://bucket/in/ --model churn.onnx --output s3://bucket/out/ --watch

\b
Exit status: 0 all records predicted; 3 some records failed (see *.failed.jsonl); 1 the run
failed, or an object could not be read to its end; 2 wrong usage; 130 stopped by Ctrl-C (resume
with --resume).
"""

_log = logging.getLogger("headrace.cli")


@click.command("stream", epilog=_EPILOG, short_help="Score objects as a stream.")
@click.argument("source", nargs=-1, required=True, shell_complete=complete_files)
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=complete_files,
    help="Model: model.onnx, file.py, file.py:Class or module:Class.",
)
@click.option("--endpoint", metavar="URL", help="URL of a served model, instead of --model.")
@click.option(
    "--output",
    required=True,
    metavar="DEST",
    shell_complete=complete_files,
    help="Folder or prefix of the predictions, as in scored/.",
)
@SOURCE_OPTIONS
@SEQUENCE_OPTIONS
@FLOW_OPTIONS
@OUTPUT_OPTIONS
def stream_command(source: tuple[str, ...], **params: Any) -> None:
    """Run a model over the records of SOURCE and write the predictions in source order.

    SOURCE is an object, a prefix that ends with /, a glob or manifest:URI, on s3://, gs://, az://,
    http(s)://, file://, or a plain path. Objects are streamed, never downloaded whole.
    """
    check_usage(click.get_current_context())
    configure_logs(params["log_format"], params["verbose"])
    try:
        code = _stream(source[0] if len(source) == 1 else list(source), params)
    except HeadraceError as error:
        _log.debug("run failed", exc_info=True)
        code = print_error(error, json_lines=params["json_lines"])
    sys.stdout.flush()
    raise SystemExit(code)


def _stream(source: str | list[str], params: dict[str, Any]) -> int:
    add_current_folder_to_path()
    opened = open_run(
        source,
        output=params["output"],
        model=params["model"],
        endpoint=params["endpoint"],
        settings=stream_settings(params),
        options=predictor_options(params),
        resume=params["resume"],
        overwrite=params["overwrite"],
    )
    json_lines: bool = params["json_lines"]
    style = choose_style(json_lines=json_lines, quiet=params["quiet"])
    display = ProgressDisplay(style, opened.run.progress, opened.predictor.statistics)
    if params["watch"]:
        return _watch(opened, display, poll_s=params["poll_s"], json_lines=json_lines)
    with InterruptHandler(opened.run.drain):
        report = execute(opened, display)
    return print_report(report, opened.run.progress, json_lines=json_lines)


def _watch(opened: OpenedRun, display: ProgressDisplay, *, poll_s: float, json_lines: bool) -> int:
    """Score new objects until stopped, with a report after each poll that found any.

    Return the exit status of the last report.
    """
    watch = open_watch(opened, poll_s=poll_s)
    code = 0

    def say(report: Report) -> None:
        nonlocal code
        code = exit_status(report)
        print_report(report, opened.run.progress, json_lines=json_lines)

    with InterruptHandler(watch.stop), opened, display:
        watch.serve(say)
    return code
