"""``headrace transform``: a prefix full of files in, one predictions file each out."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from headrace.app.streaming import see_modules_here
from headrace.app.transforming import (
    DryRun,
    OpenedTransform,
    dry_run,
    execute,
    open_transform,
    retry_failed,
)
from headrace.cli.ending import say_error
from headrace.cli.interrupt import Interrupts
from headrace.cli.logs import configure_logs
from headrace.cli.options import options
from headrace.cli.progress import Display, choose_style
from headrace.cli.transform_ending import say_dry_run, say_transform_report
from headrace.cli.transform_options import (
    FAILURE_OPTIONS,
    INPUT_OPTIONS,
    OUTPUT_OPTIONS,
    WORK_OPTIONS,
    in_options_words,
    predictor_options_from,
    spec_from,
)
from headrace.cli.worker_options import WORKER_OPTIONS, regions_from, workers_from
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.predictor import Predictor
from headrace.pipeline.progress import Progress
from headrace.storage.resolve import Stores
from headrace.transforms.retry import Retry
from headrace.transforms.run import IfExists
from headrace.transforms.spec import TransformSpec

_EPILOG = """\b
Examples:
  Score every CSV below a prefix; each line stays beside its prediction:
    headrace transform s3://bucket/in/ s3://bucket/out/ --model churn.onnx --join input
  Leave the ID column out of what the model sees, and keep only it and the prediction:
    headrace transform in/ out/ --model churn.onnx --header drop \\
        --input-filter '$[1:]' --join input --output-filter '$[0,-1]'
  See what would be done, and what the model would be given, and write nothing:
    headrace transform in/ out/ --model churn.onnx --dry-run
  All cores; stop when more than one record in a hundred fails:
    headrace transform in/ out/ --model churn.onnx --workers 8 --max-failed 1%
  On a Ray cluster, workers with half an accelerator each; on Flink, through Beam:
    headrace transform s3://bucket/in/ s3://bucket/out/ --model net.onnx \\
        --runner ray --ray-address auto --worker-gpus 0.5
    headrace transform s3://bucket/in/ s3://bucket/out/ --model net.onnx --runner beam \\
        --beam-options '--runner=FlinkRunner --flink_master=flink:8081 --environment_type=LOOPBACK'
  A job as SageMaker has it (CreateTransformJob, as JSON or TOML), on this machine:
    headrace transform --spec job.json --model churn.onnx
  Go on after a kill, or after Ctrl-C; then try the failed records again:
    headrace transform in/ out/ --model churn.onnx --resume
    headrace transform retry-failed out/

\b
in/day/a.csv becomes out/day/a.csv.out, whole or not at all, its records in order; those that
failed, with line, byte, reason and bytes, out/day/a.csv.out.failed.

\b
Exit status: 0 all records predicted; 3 some records failed (see *.failed); 1 the run broke, an
object is broken or has no output, or tasks are left for workers in other regions; 2 wrong usage;
130 stopped by Ctrl-C (resume with --resume).
"""

_log = logging.getLogger("headrace.cli")
_DRY_RECORDS: Final = 3

ENDING_OPTIONS = options(
    click.option("--report", type=click.Choice(["html"]), help="A page too, DEST/_report.html, with plots; _report.json is always written."),
    click.option("--json", "json_lines", is_flag=True, help="Progress and report as JSON lines on standard output."),
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", count=True, help="Structured logs on standard error; twice for more."),
)  # fmt: skip


class _Transform(click.Group):
    """``transform SOURCE DEST`` is the command itself; a name of another one in SOURCE's place is that."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


_RUN: Final = "run"


@click.group("transform", cls=_Transform, short_help="Score files in batch; one predictions file each.")
def transform_command() -> None:
    """Score files in batch."""


class _Run(click.Command):
    """Is called what its group is."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        path = ctx.parent.command_path if ctx.parent else ctx.command_path
        formatter.write_usage(path, "[OPTIONS] SOURCE... DEST")
        formatter.write_usage(path, "retry-failed [OPTIONS] DEST", prefix="       ")


@transform_command.command(_RUN, cls=_Run, epilog=_EPILOG)
@click.argument("source", nargs=-1)
@click.option(
    "--spec",
    "spec_file",
    metavar="FILE",
    help="A spec, .toml or .json, in SageMaker's words; options count before it.",
)
@click.option("--model", metavar="MODEL", help="model.onnx, file.py, file.py:Class or module:Class.")
@click.option("--endpoint", metavar="URL", help="A model served elsewhere, instead of --model.")
@INPUT_OPTIONS
@OUTPUT_OPTIONS
@FAILURE_OPTIONS
@WORK_OPTIONS
@WORKER_OPTIONS
@click.option("--resume", is_flag=True, help="Go on with the run that is there, or begin one.")
@click.option("--overwrite", is_flag=True, help="Delete the run that is there, and begin anew.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and what the model would see; write nothing.")
@ENDING_OPTIONS
def run_command(source: tuple[str, ...], **given: Any) -> None:  # fmt: skip
    """Run a model over every object of SOURCE, and write one predictions file for each below DEST.

    SOURCE is an object, a prefix that ends with /, a glob, or manifest:URI; DEST a folder or prefix outside of it; on
    s3://, gs://, az://, file://, a plain path, SOURCE on http(s):// too. More than one SOURCE may stand before DEST.
    """
    configure_logs(given["verbose"])
    see_modules_here()
    try:
        code = _transform(source, given)
    except HeadraceError as error:
        _log.debug("transform broke", exc_info=True)
        code = say_error(error, json_lines=given["json_lines"])
    sys.stdout.flush()
    raise SystemExit(code)


@transform_command.command("retry-failed")
@click.argument("destination", metavar="DEST")
@click.option("--model", metavar="MODEL", help="Where the model is now.  [default: where it was]")
@click.option("--endpoint", metavar="URL", help="A model served elsewhere, instead of --model.")
@click.option("--other-model", is_flag=True, help="Take another model than the one that wrote the rest.")
@ENDING_OPTIONS
def retry_failed_command(destination: str, **given: Any) -> None:
    r"""Try the failed records of a finished transform once more, and merge what comes out into place.

    Only the records in DEST/**.failed are asked about again. Objects that broke, and outputs in Parquet or Arrow, are
    done again whole.

    \b
    Exit status: 0 no record is left that failed; 3 some are; 1 it broke.
    """
    configure_logs(given["verbose"])
    see_modules_here()
    json_lines = given["json_lines"]
    progress = Progress()

    def shown(retry: Retry, predictor: Predictor) -> Display:
        nonlocal progress
        progress = retry.progress
        style = choose_style(json_lines=json_lines, quiet=given["quiet"])
        return Display(style, retry.progress, predictor.statistics)

    try:
        report = retry_failed(
            destination,
            model=given["model"],
            endpoint=given["endpoint"],
            other_model=given["other_model"],
            around=shown,
        )
        code = say_transform_report(report, progress, json_lines=json_lines)
    except HeadraceError as error:
        _log.debug("retry broke", exc_info=True)
        code = say_error(error, json_lines=json_lines)
    sys.stdout.flush()
    raise SystemExit(code)


def _spec(given: Mapping[str, Any]) -> TransformSpec:
    """The spec; what is wrong with the options alone is wrong usage, and is told in their words."""
    try:
        return spec_from(given, given["spec_file"])
    except ConfigError as error:
        if given["spec_file"] is not None:
            raise
        raise click.UsageError(in_options_words(str(error))) from error


def _transform(places: tuple[str, ...], given: dict[str, Any]) -> int:
    spec = _spec(given)
    source, destination = _places(places, spec)
    model = given["model"] or (None if given["endpoint"] else spec.model)
    if (model is None) == (given["endpoint"] is None):
        raise click.UsageError("give either --model or --endpoint, not both and not neither")
    if given["resume"] and given["overwrite"]:
        raise click.UsageError("--resume and --overwrite contradict each other")
    for name in spec.passed_over:
        click.echo(f"{name} has no meaning here, and is passed over", err=True)
    common: dict[str, Any] = {
        "model": model,
        "endpoint": given["endpoint"],
        "settings": spec.settings,
        "options": predictor_options_from(given, spec),
        "stores": Stores(retry_s=given["retry_s"]),
    }
    if given["dry_run"]:
        found: DryRun = dry_run(source, destination, **common, records=_DRY_RECORDS)
        return say_dry_run(found, spec.settings, json_lines=given["json_lines"])
    if_exists: IfExists = "resume" if given["resume"] else "overwrite" if given["overwrite"] else "refuse"
    opened = open_transform(
        source,
        destination,
        **common,
        workers=workers_from(given, spec),
        regions=regions_from(given),
        if_exists=if_exists,
        page=given["report"] == "html",
    )
    return _run(opened, given)


def _run(opened: OpenedTransform, given: dict[str, Any]) -> int:
    run, json_lines = opened.transform, given["json_lines"]
    style = choose_style(json_lines=json_lines, quiet=given["quiet"])
    display = Display(style, run.progress, run.statistics, reading=run.reading)
    with Interrupts(run.drain):
        report = execute(opened, display)
    return say_transform_report(report, run.progress, json_lines=json_lines, page=run.page)


def _places(places: tuple[str, ...], spec: TransformSpec) -> tuple[str | list[str], str]:
    """Source and destination, of the command line or the spec."""
    if not all(places):
        # As a shell makes them of a variable that is not set; the empty path would be the whole disk.
        raise click.UsageError("SOURCE or DEST is empty")
    if not places and spec.source and spec.output:
        return spec.source, spec.output
    if len(places) == 1 and spec.output:
        return places[0], spec.output
    if len(places) < 2:
        raise click.UsageError("give SOURCE and DEST, or a --spec that names both")
    if Path(places[-1]).is_file():
        raise click.UsageError(f"DEST, {places[-1]}, is a file: name a folder")
    return (places[0] if len(places) == 2 else list(places[:-1])), places[-1]
