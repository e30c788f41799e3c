"""``headrace transform``: score files with one predictions file each."""

import logging
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from headrace.app.streaming import add_current_folder_to_path
from headrace.app.transforming import (
    DryRun,
    OpenedTransform,
    dry_run,
    execute,
    open_transform,
    retry_failed,
)
from headrace.cli.dry_run import print_dry_run
from headrace.cli.groups import DefaultCommandGroup, complete_files
from headrace.cli.interrupt import InterruptHandler
from headrace.cli.logs import configure_logs
from headrace.cli.options import RUN_LOG_OPTIONS, combined_options
from headrace.cli.progress import ProgressDisplay, choose_style
from headrace.cli.reports import print_error, print_report
from headrace.cli.runner_options import RUNNER_OPTIONS, regions_from, workers_from
from headrace.cli.transform_options import (
    FAILURE_OPTIONS,
    INPUT_OPTIONS,
    OUTPUT_OPTIONS,
    WORK_OPTIONS,
    predictor_options_from,
    spec_from,
    with_option_names,
)
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.predictor import Predictor
from headrace.runs.progress import RunProgress
from headrace.runs.retry import FailedRecordsRetry
from headrace.runs.spec import TransformSpec
from headrace.storage.resolve import Stores

_EPILOG = """\b
Examples:
  Score every CSV below a prefix and write each line beside its prediction:
    headrace transform s3://bucket/in/ s3://bucket/out/ --model churn.onnx --join input
  Hide the ID column from the model, and write only the ID and the prediction:
    headrace transform in/ out/ --model churn.onnx --header drop \\
        --input-filter '$[1:]' --join input --output-filter '$[0,-1]'
  Show the plan and the model's inputs, and write nothing:
    headrace transform in/ out/ --model churn.onnx --dry-run
  Use eight workers, and stop when more than one record in a hundred fails:
    headrace transform in/ out/ --model churn.onnx --workers 8 --max-failed 1%
  Run on a Ray cluster with half a GPU per worker, or on Flink through Beam:
    headrace transform s3://bucket/in/ s3://bucket/out/ --model net.onnx \\
        --runner ray --ray-address auto --worker-gpus 0.5
    headrace transform s3://bucket/in/ s3://bucket/out/ --model net.onnx --runner beam \\
        --beam-options '--runner=FlinkRunner --flink_master=flink:8081 --environment_type=LOOPBACK'
  Run a SageMaker job (CreateTransformJob, as JSON or TOML) on this machine:
    headrace transform --spec job.json --model churn.onnx
  Resume after a kill or Ctrl-C, then retry the failed records:
    headrace transform in/ out/ --model churn.onnx --resume
    headrace transform retry-failed out/

\b
in/day/a.csv becomes out/day/a.csv.out, whole or not at all, with its records in order. Failed
records go to out/day/a.csv.out.failed, with line, byte, reason and bytes.

\b
Exit status: 0 all records predicted; 3 some records failed (see *.failed); 1 the run failed, an
object is broken or has no output, or tasks are left for workers in other regions; 2 wrong usage;
130 stopped by Ctrl-C (resume with --resume).
"""

_RETRY_EPILOG = """\b
Examples:
  headrace transform retry-failed s3://bucket/out/

\b
Exit status: 0 no failed record is left; 3 some are left; 1 the retry failed.
"""

_log = logging.getLogger("headrace.cli")
_DRY_RECORDS: Final = 3

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


@click.group("transform", cls=DefaultCommandGroup, short_help="Score files, with one predictions file each.")
def transform_command() -> None:
    """Score files, with one predictions file each."""


class _Run(click.Command):
    """The ``run`` command; its usage shows the name of its group."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        path = ctx.parent.command_path if ctx.parent else ctx.command_path
        formatter.write_usage(path, "[OPTIONS] SOURCE... DEST")
        formatter.write_usage(path, "retry-failed [OPTIONS] DEST", prefix="       ")


@transform_command.command(DefaultCommandGroup.default_command, cls=_Run, epilog=_EPILOG)
@click.argument("source", nargs=-1, shell_complete=complete_files)
@click.option(
    "--spec",
    "spec_file",
    metavar="FILE",
    shell_complete=complete_files,
    help="Spec file (.toml, .json) in the format of SageMaker; options override it.",
)
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=complete_files,
    help="Model: model.onnx, file.py, file.py:Class or module:Class.",
)
@click.option("--endpoint", metavar="URL", help="URL of a served model, instead of --model.")
@INPUT_OPTIONS
@OUTPUT_OPTIONS
@FAILURE_OPTIONS
@WORK_OPTIONS
@RUNNER_OPTIONS
@click.option("--resume", is_flag=True, help="Continue the run at DEST, or start a new one.")
@click.option("--overwrite", is_flag=True, help="Delete the run at DEST and start a new one.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the model's inputs; write nothing.")
@REPORT_OPTIONS
def run_command(source: tuple[str, ...], **params: Any) -> None:
    """Run a model over every object of SOURCE and write one predictions file for each below DEST.

    SOURCE is an object, a prefix that ends with /, a glob or manifest:URI. DEST is a folder or prefix
    outside SOURCE. Both are on s3://, gs://, az://, file://, or a plain path; SOURCE can also be on
    http(s)://. More than one SOURCE can precede DEST.
    """
    configure_logs(params["log_format"], params["verbose"])
    add_current_folder_to_path()
    try:
        code = _transform(source, params)
    except HeadraceError as error:
        _log.debug("transform failed", exc_info=True)
        code = print_error(error, json_lines=params["json_lines"])
    sys.stdout.flush()
    raise SystemExit(code)


@transform_command.command("retry-failed", epilog=_RETRY_EPILOG)
@click.argument("destination", metavar="DEST", shell_complete=complete_files)
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=complete_files,
    help="Current name of the model.  [default: its name in the run]",
)
@click.option("--endpoint", metavar="URL", help="URL of a served model, instead of --model.")
@click.option("--other-model", is_flag=True, help="Allow a model that differs from the model of the run.")
@REPORT_OPTIONS
def retry_failed_command(destination: str, **params: Any) -> None:
    """Retry the failed records of a finished transform and merge the results into its outputs.

    Only the records in DEST/**.failed are sent to the model again. Broken objects, and outputs in
    Parquet or Arrow, are processed again as a whole. DEST/_report.json gets the new counts, and so
    does DEST/_report.html if it is there.
    """
    configure_logs(params["log_format"], params["verbose"])
    add_current_folder_to_path()
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

    try:
        report = retry_failed(
            destination,
            model=params["model"],
            endpoint=params["endpoint"],
            other_model=params["other_model"],
            report=params["report"],
            around=open_display,
        )
        code = print_report(report, progress, json_lines=json_lines, page=page)
    except HeadraceError as error:
        _log.debug("retry failed", exc_info=True)
        code = print_error(error, json_lines=json_lines)
    sys.stdout.flush()
    raise SystemExit(code)


def _spec(params: Mapping[str, Any]) -> TransformSpec:
    """Return the spec. Without a spec file, errors are usage errors with the options' names."""
    try:
        return spec_from(params, params["spec_file"])
    except ConfigError as error:
        if params["spec_file"] is not None:
            raise
        raise click.UsageError(with_option_names(str(error))) from error


def _transform(arguments: tuple[str, ...], params: dict[str, Any]) -> int:
    spec = _spec(params)
    source, destination = _source_and_destination(arguments, spec)
    model = params["model"] or (None if params["endpoint"] else spec.model)
    if (model is None) == (params["endpoint"] is None):
        raise click.UsageError("give either --model or --endpoint")
    if params["resume"] and params["overwrite"]:
        raise click.UsageError("--resume and --overwrite cannot be combined")
    for name in spec.ignored_fields:
        click.echo(f"warning: {name} has no effect here and is ignored", err=True)
    common: dict[str, Any] = {
        "model": model,
        "endpoint": params["endpoint"],
        "settings": spec.settings,
        "options": predictor_options_from(params, spec),
        "stores": Stores(retry_s=params["retry_s"]),
    }
    if params["dry_run"]:
        found: DryRun = dry_run(source, destination, **common, records=_DRY_RECORDS)
        return print_dry_run(found, spec.settings, json_lines=params["json_lines"])
    opened = open_transform(
        source,
        destination,
        **common,
        workers=workers_from(params, spec),
        regions=regions_from(params),
        resume=params["resume"],
        overwrite=params["overwrite"],
        report=params["report"],
    )
    return _run(opened, params)


def _run(opened: OpenedTransform, params: dict[str, Any]) -> int:
    run, json_lines = opened.transform, params["json_lines"]
    style = choose_style(json_lines=json_lines, quiet=params["quiet"])
    display = ProgressDisplay(style, run.progress, run.statistics, reading=run.reading)
    with InterruptHandler(run.drain):
        report = execute(opened, display)
    return print_report(report, run.progress, json_lines=json_lines, page=run.page)


def _source_and_destination(arguments: tuple[str, ...], spec: TransformSpec) -> tuple[str | list[str], str]:
    """Return source and destination from the command line or the spec."""
    if not all(arguments):
        # An unset shell variable yields an empty string. An empty path would read the whole disk.
        raise click.UsageError("SOURCE or DEST is empty")
    if not arguments and spec.source and spec.output:
        return spec.source, spec.output
    if len(arguments) == 1 and spec.output:
        return arguments[0], spec.output
    if len(arguments) < 2:
        raise click.UsageError("give SOURCE and DEST, or a --spec that names both")
    if Path(arguments[-1]).is_file():
        raise click.UsageError(f"DEST {arguments[-1]} is a file: name a folder")
    return (arguments[0] if len(arguments) == 2 else list(arguments[:-1])), arguments[-1]
