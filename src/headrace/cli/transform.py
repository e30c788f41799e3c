"""``headrace transform``: score files with one predictions file each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from headrace.app.runs import dry_run, open_run
from headrace.cli.commands import DefaultCommandGroup, complete_files
from headrace.cli.run_display import print_dry_run
from headrace.cli.run_options import (
    RUNNER_OPTIONS,
    TRANSFORM_OPTIONS,
    regions_from,
    spec_from,
    with_option_names,
    with_spec_values,
    workers_from,
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
  Try the model on the first 1,000 records, or on a sample of 1%:
    headrace transform in/ first/ --model churn.onnx --limit 1000
    headrace transform in/ sample/ --model churn.onnx --sample 1%
  Run files of V2 inference requests, as written for mlserver infer:
    headrace transform requests/ out/ --model churn.onnx --content-type v2
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
  Score new objects below a prefix until stopped:
    headrace transform s3://bucket/in/ s3://bucket/out/ --model churn.onnx --watch

\b
in/day/a.csv becomes out/day/a.csv.out, whole or not at all, with its records in order. Failed
records go to out/day/a.csv.out.failed, with line, byte, reason and bytes.

\b
Exit status: 0 all records predicted; 3 some records failed (see *.failed); 1 the run failed, an
object is broken or has no output, or tasks are left for workers in other regions; 2 wrong usage;
130 stopped by Ctrl-C (resume with --resume).
"""


@click.group("transform", cls=DefaultCommandGroup)
def transform_command() -> None:
    """Score files, with one predictions file each."""


class _Run(RunCommand):
    usage_lines = ("[OPTIONS] SOURCE... DEST", "retry-failed [OPTIONS] DEST")


@transform_command.command(DefaultCommandGroup.default_command, cls=_Run, epilog=_EPILOG)
@click.argument("source", nargs=-1, shell_complete=complete_files)
@click.option(
    "--spec",
    "spec_file",
    metavar="FILE",
    shell_complete=complete_files,
    help="Spec file (.toml, .json) in the format of SageMaker; options override it.",
)
@MODEL_OPTIONS
@TRANSFORM_OPTIONS
@RUNNER_OPTIONS
@EXISTING_OPTIONS
@REPORT_OPTIONS
def run_command(source: tuple[str, ...], **params: Any) -> None:
    """Run a model over every object of SOURCE and write one predictions file for each below DEST.

    SOURCE is an object, a prefix that ends with /, a glob or manifest:URI. DEST is a folder or prefix
    outside SOURCE. Both are on s3://, gs://, az://, file://, or a plain path; SOURCE can also be on
    http(s)://. More than one SOURCE can precede DEST. Both can also be tables (delta:FOLDER,
    iceberg:CATALOG/NAMESPACE.TABLE): the run is one commit of DEST.
    """
    check_existing_options(click.get_current_context())
    exit_with(lambda: _transform(source, params), params)


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
    use_spec_model = not params["model"] and params["endpoint"] is None
    model = spec.model if use_spec_model else params["model"] or None
    if (model is None) == (params["endpoint"] is None):
        raise click.UsageError("give either --model or --endpoint")
    for name in spec.ignored_fields:
        click.echo(f"warning: {name} has no effect here and is ignored", err=True)
    options = predictor_options(params)
    common: dict[str, Any] = {
        "model": model,
        "endpoint": params["endpoint"],
        "settings": spec.settings,
        "options": with_spec_values(options, spec, use_spec_model=use_spec_model),
        "stores": Stores(retry_s=options.retry_s),
    }
    if params["dry_run"]:
        found = dry_run(source, destination, **common, records=DRY_RECORDS)
        return print_dry_run(found, spec.settings, json_lines=params["json_lines"])
    opened = open_run(
        source,
        output=destination,
        **common,
        workers=workers_from(params, spec.instances),
        regions=regions_from(params),
        resume=params["resume"],
        overwrite=params["overwrite"],
        report=params["report"],
    )
    return run_or_watch(opened, params)


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


transform_command.add_command(retry_failed_command)
