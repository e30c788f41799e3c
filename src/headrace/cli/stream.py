"""``headrace stream``: score objects as streams and write the predictions in source order."""

from typing import Any

import click

from headrace.app.runs import dry_run, open_run
from headrace.cli.commands import DefaultCommandGroup, complete_files
from headrace.cli.run_display import print_dry_run
from headrace.cli.run_options import (
    RUNNER_OPTIONS,
    STREAM_OPTIONS,
    check_usage,
    regions_from,
    stream_settings,
    stream_workers_from,
)
from headrace.cli.runs import (
    DRY_RECORDS,
    EXISTING_OPTIONS,
    MODEL_OPTIONS,
    REPORT_OPTIONS,
    RunCommand,
    check_existing_options,
    exit_with,
    predictor_options,
    retry_failed_command,
    run_or_watch,
)
from headrace.core.errors import ConfigError

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
  Run a file of V2 inference requests, as written for mlserver infer:
    headrace stream requests.jsonl --format v2 --model churn.onnx --output scored/
  Use a model with a state for each user, until the last record of a session:
    headrace stream events.csv --model sessions.py --header names --sequence user \\
        --sequence-end closed --output scored/
  Use eight worker processes, each of which writes parts of its own:
    headrace stream data/ --model churn.onnx --workers 8 --output scored/
  Try the model on the first 1,000 records, or on a sample of 1%:
    headrace stream data/ --model churn.onnx --limit 1000 --output first/
    headrace stream data/ --model churn.onnx --sample 1% --output sample/
  Resume after a kill or Ctrl-C, then retry the failed records:
    headrace stream ... --output scored/ --resume
    headrace stream retry-failed scored/
  Score new objects below a prefix until stopped:
    headrace stream s3://bucket/in/ --model churn.onnx --output s3://bucket/out/ --watch

\b
Exit status: 0 all records predicted; 3 some records failed (see *.failed.jsonl); 1 the run
failed, or an object could not be read to its end; 2 wrong usage; 130 stopped by Ctrl-C (resume
with --resume).
"""


@click.group("stream", cls=DefaultCommandGroup)
def stream_command() -> None:
    """Score objects as a stream."""


class _Run(RunCommand):
    usage_lines = ("[OPTIONS] SOURCE...", "retry-failed [OPTIONS] DEST")


@stream_command.command(DefaultCommandGroup.default_command, cls=_Run, epilog=_EPILOG)
@click.argument("source", nargs=-1, required=True, shell_complete=complete_files)
@MODEL_OPTIONS
@click.option(
    "--output",
    required=True,
    metavar="DEST",
    shell_complete=complete_files,
    help="Folder or prefix of the predictions, as in scored/, or a table.",
)
@STREAM_OPTIONS
@RUNNER_OPTIONS
@EXISTING_OPTIONS
@REPORT_OPTIONS
def run_command(source: tuple[str, ...], **params: Any) -> None:
    """Run a model over the records of SOURCE and write the predictions in source order.

    SOURCE is an object, a prefix that ends with /, a glob or manifest:URI, on s3://, gs://, az://,
    http(s)://, file://, or a plain path. SOURCE and DEST can also be tables (delta:FOLDER,
    iceberg:CATALOG/NAMESPACE.TABLE): the run is one commit of DEST. Objects are streamed, never
    downloaded whole. With --workers or --runner, each worker writes the parts of its tasks. The numbers of
    the parts are in source order, but a later part may appear first.
    """
    check_usage(click.get_current_context())
    check_existing_options(click.get_current_context())
    exit_with(lambda: _stream(source[0] if len(source) == 1 else list(source), params), params)


def _stream(source: str | list[str], params: dict[str, Any]) -> int:
    workers = stream_workers_from(params)
    try:
        settings = stream_settings(params)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    common: dict[str, Any] = {
        "model": params["model"],
        "endpoint": params["endpoint"],
        "settings": settings,
        "options": predictor_options(params),
        "workers": workers,
    }
    if params["dry_run"]:
        found = dry_run(source, params["output"], **common, records=DRY_RECORDS)
        return print_dry_run(found, settings, json_lines=params["json_lines"])
    opened = open_run(
        source,
        output=params["output"],
        **common,
        regions=regions_from(params) if workers is not None else None,
        resume=params["resume"],
        overwrite=params["overwrite"],
        report=params["report"],
    )
    return run_or_watch(opened, params)


stream_command.add_command(retry_failed_command)
