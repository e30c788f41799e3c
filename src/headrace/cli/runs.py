"""The parts that ``headrace stream`` and ``headrace transform`` share: options, execution, retry."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

import click
from click.core import ParameterSource
from typing_extensions import override

from headrace.app.models import PredictorOptions, add_current_folder_to_path
from headrace.app.runs import OpenedRun, execute, open_watch, retry_failed
from headrace.cli.commands import INTERRUPTED, complete_files, print_error
from headrace.cli.logs import configure_logs
from headrace.cli.options import (
    MODEL_OPTIONS_OPTION,
    POSITIVE,
    RUN_LOG_OPTIONS,
    combined_options,
    model_options,
    settings_from,
)
from headrace.cli.run_display import (
    ProgressDisplay,
    choose_style,
    exit_status,
    print_report,
    print_tracebacks,
)
from headrace.core.errors import HeadraceError
from headrace.core.predictor import Predictor
from headrace.reports.report import Report
from headrace.runs.retry import FailedRecordsRetry
from headrace.runs.work import RunProgress

DRY_RECORDS: Final = 3
_log = logging.getLogger("headrace.cli")

REPORT_OPTIONS = combined_options(
    click.option(
        "--report",
        type=click.Choice(["html"]),
        help="Additional report with plots, DEST/_report.html. DEST/_report.json is always written.",
    ),
    click.option(
        "--json",
        "json_lines",
        is_flag=True,
        help="Print progress and report as JSON lines on standard output.",
    ),
    click.option("--quiet", "-q", is_flag=True, help="Do not show progress."),
    RUN_LOG_OPTIONS,
)

EXISTING_OPTIONS = combined_options(
    click.option("--resume", is_flag=True, help="Continue the run at DEST, or start a new one."),
    click.option("--overwrite", is_flag=True, help="Delete the run at DEST and start a new one."),
    click.option("--dry-run", is_flag=True, help="Show the plan and the model's inputs; write nothing."),
    click.option("--watch", is_flag=True, help="Poll the source and score new objects until stopped."),
    click.option(
        "--poll-s", type=POSITIVE, default=5.0, show_default=True, help="Polling interval in seconds."
    ),
)

MODEL_OPTIONS = combined_options(
    click.option(
        "--model",
        metavar="MODEL",
        shell_complete=complete_files,
        help="Model: a file, file.py:Class, module:Class, a folder, an archive or a URI; see docs/models.md.",
    ),
    click.option("--endpoint", metavar="URL", help="URL of a served model, instead of --model."),
    MODEL_OPTIONS_OPTION,
)


def predictor_options(params: Mapping[str, Any]) -> PredictorOptions:
    """Return the options of the model or endpoint. Raise UsageError for -O with an endpoint."""
    options = model_options(params)
    if options and params["endpoint"] is not None:
        raise click.UsageError("-O requires --model: an endpoint has its own options")
    return settings_from(PredictorOptions, params, model_options=options)


class RunCommand(click.Command):
    """The ``run`` command of a group; its usage shows the name of the group and all its commands."""

    usage_lines: tuple[str, ...] = ()

    @override
    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        path = ctx.parent.command_path if ctx.parent else ctx.command_path
        for number, line in enumerate(self.usage_lines):
            formatter.write_usage(path, line, prefix="       " if number else None)


def exit_with(action: Callable[[], int], params: dict[str, Any]) -> NoReturn:
    """Configure the process for a run, call the action, and exit with its status or an error's."""
    configure_logs(params["log_format"], params["verbose"])
    add_current_folder_to_path()
    try:
        code = action()
    except HeadraceError as error:
        _log.debug("run failed", exc_info=True)
        code = print_error(error, json_lines=params["json_lines"])
    sys.stdout.flush()
    raise SystemExit(code)


def check_existing_options(context: click.Context) -> None:
    """Raise UsageError for options about earlier output that exclude or require each other."""
    params = context.params
    polls = context.get_parameter_source("poll_s") is ParameterSource.COMMANDLINE
    if polls and not params["watch"]:
        raise click.UsageError("--poll-s requires --watch")
    if params["resume"] and params["overwrite"]:
        raise click.UsageError("--resume and --overwrite cannot be combined")
    if params["dry_run"] and params["watch"]:
        raise click.UsageError("--dry-run and --watch cannot be combined: a dry run writes nothing")
    if params["limit"] is not None and params["watch"]:
        raise click.UsageError(
            "--limit and --watch cannot be combined: --limit takes the first records of a complete source; "
            "use --sample"
        )


def run_or_watch(opened: OpenedRun, params: dict[str, Any]) -> int:
    """Execute the run with a progress display and print its report, or watch its source.

    Return the exit status, when watching that of the last report.
    """
    run, json_lines = opened.run, params["json_lines"]
    style = choose_style(json_lines=json_lines, quiet=params["quiet"])
    display = ProgressDisplay(style, run.progress, run.statistics, reading=run.reading)
    if params["watch"]:
        return _watch(opened, display, poll_s=params["poll_s"], json_lines=json_lines)
    try:
        with InterruptHandler(run.drain):
            report = execute(opened, display)
        return print_report(report, run.progress, json_lines=json_lines, page=run.page)
    finally:
        sys.stdout.flush()
        print_tracebacks(run.progress)


def _watch(opened: OpenedRun, display: ProgressDisplay, *, poll_s: float, json_lines: bool) -> int:
    """Score new objects until stopped, with a report after each poll that found any."""
    watch = open_watch(opened, poll_s=poll_s)
    code = 0

    def say(report: Report) -> None:
        nonlocal code
        code = exit_status(report)
        print_report(report, opened.run.progress, json_lines=json_lines, page=opened.run.page)

    try:
        with InterruptHandler(watch.stop), opened, display:
            watch.serve(say)
    finally:
        sys.stdout.flush()
        print_tracebacks(opened.run.progress)
    return code


_RETRY_EPILOG = """\b
Examples:
  headrace transform retry-failed s3://bucket/out/
  headrace stream retry-failed s3://bucket/scored/

\b
Exit status: 0 no failed record is left; 3 some are left; 1 the retry failed.
"""


@click.command("retry-failed", epilog=_RETRY_EPILOG)
@click.argument("destination", metavar="DEST", shell_complete=complete_files)
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=complete_files,
    help="Current name of the model.  [default: its name and options in the run]",
)
@click.option("--endpoint", metavar="URL", help="URL of a served model, instead of --model.")
@MODEL_OPTIONS_OPTION
@click.option("--other-model", is_flag=True, help="Allow a model that differs from the model of the run.")
@click.option(
    "--schema",
    metavar="FILE",
    shell_complete=complete_files,
    help="Schema of the records, as headrace inspect --save-schema writes it.  [default: that of the run]",
)
@REPORT_OPTIONS
def retry_failed_command(destination: str, **params: Any) -> None:
    """Retry the failed records of a finished run and merge the results into its outputs.

    Only the failed records are sent to the model again. In a transform, broken objects, and outputs
    in Parquet or Arrow, are processed again as a whole; in a stream, they stay as they are.
    DEST/_report.json gets the new counts, and so does DEST/_report.html if it is there.
    """
    exit_with(lambda: _retry(destination, params), params)


def _retry(destination: str, params: dict[str, Any]) -> int:
    json_lines = params["json_lines"]
    progress = RunProgress()
    page: str | None = None

    @contextmanager
    def open_display(retry: FailedRecordsRetry, predictor: Predictor) -> Generator[None]:
        nonlocal progress, page
        progress = retry.progress
        style = choose_style(json_lines=json_lines, quiet=params["quiet"])
        with ProgressDisplay(style, retry.progress, predictor.statistics):
            yield
        page = retry.page

    report = retry_failed(
        destination,
        model=params["model"],
        endpoint=params["endpoint"],
        options=predictor_options(params) if params["model_options"] else None,
        other_model=params["other_model"],
        schema=params["schema"],
        report=params["report"],
        around=open_display,
    )
    status = print_report(report, progress, json_lines=json_lines, page=page)
    sys.stdout.flush()
    print_tracebacks(progress)
    return status


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MESSAGE = b"stopping after work in progress; press Ctrl-C again to stop at once\n"


class InterruptHandler:
    """A context manager that handles SIGINT and SIGTERM.

    The first signal calls `stop` in a new thread. The second one ends the process at once; the run
    can be resumed. Enter it in the main thread.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._signals_received = 0
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous_handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal without taking locks: the interrupted main thread may hold any lock."""
        self._signals_received += 1
        if self._signals_received > 1:
            os._exit(INTERRUPTED)
        threading.Thread(target=self._stop, name="headrace-interrupt", daemon=True).start()
        os.write(2, _MESSAGE)
