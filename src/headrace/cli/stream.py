"""``headrace stream``: score objects as streams, and write the predictions in order."""

import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import click
import orjson
from rich.console import Console
from rich.table import Table

from headrace.app import OpenedRun, PredictorOptions, execute, open_run, open_watch
from headrace.cli.logs import configure_logs
from headrace.cli.progress import Display, choose_style
from headrace.core.errors import HeadraceError
from headrace.formats.read import ReadOptions
from headrace.pipeline.report import Report
from headrace.pipeline.run import IfExists
from headrace.pipeline.settings import (
    FlowSettings,
    MappingOptions,
    OutputSettings,
    StreamSettings,
)

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
Command = TypeVar("Command", bound=Callable[..., Any])


def _bytes(_: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """``16MiB``, ``64k``, ``1000``."""
    if value is None:
        return None
    text = value.strip().lower().removesuffix("b").removesuffix("i")
    scale = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text[-1:], 1)
    try:
        return int(float(text.rstrip("kmg")) * scale)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no size: write 16MiB, 64k or 1000", param=parameter) from None


def _columns(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str | int, ...]:
    """``a,b,c``, ``0,3,5-9``."""
    if not value:
        return ()
    found: list[str | int] = []
    for part in value.split(","):
        low, dash, high = part.strip().partition("-")
        if low.isdigit() and dash and high.isdigit():
            found.extend(range(int(low), int(high) + 1))
        else:
            found.append(int(part) if part.strip().isdigit() else part.strip())
    if len({type(c) for c in found}) > 1:
        raise click.BadParameter("name all columns, or number all of them", param=parameter)
    return tuple(found)


def _size_px(
    _context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """``224x224``: height, width."""
    if value is None:
        return None
    height, _, width = value.lower().partition("x")
    if not (height.isdigit() and width.isdigit()):
        raise click.BadParameter("write HEIGHTxWIDTH, as in 224x224", param=parameter)
    return int(height), int(width)


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_SOURCE_OPTIONS = _options(
    click.option("--members", multiple=True, metavar="GLOB", help="Archive members to read; may be repeated."),
    click.option(
        "--format", "format_", default="auto", show_default=True,
        type=click.Choice(["auto", "csv", "jsonl", "whole", "image", "audio", "video"]),
        help="What objects and members are; auto goes by their names.",
    ),
    click.option(
        "--compression", default="auto", show_default=True,
        type=click.Choice(["auto", "none", "gzip", "bzip2", "zstd"]), help="How objects are compressed.",
    ),
    click.option("--delimiter", default=None, metavar="C", help="Of CSV cells.  [default: , or tab for .tsv]"),
    click.option(
        "--header", default="none", show_default=True, type=click.Choice(["none", "drop", "names"]),
        help="A CSV file's first record: a record, a header to drop, or the columns' names.",
    ),
    click.option("--columns", callback=_columns, metavar="A,B,…", help="Columns or fields, by name or index (0-9)."),
    click.option("--text-column", metavar="NAME", help="One column or field, as text."),
    click.option(
        "--record-bytes-max", default="16MiB", show_default=True, callback=_bytes,
        help="A longer record fails instead of filling the memory.",
    ),
    click.option("--image-size", callback=_size_px, metavar="HxW", help="Images and frames are brought to this size."),
    click.option("--window-ms", type=float, help="Audio: the length of a window."),
    click.option("--hop-ms", type=float, help="Audio: from one window's start to the next.  [default: --window-ms]"),
    click.option("--sample-rate", "sample_rate_hz", type=int, help="Audio: resample to this rate in Hz."),
    click.option("--every-frames", type=int, help="Video: every n-th frame."),
    click.option("--every-ms", type=float, help="Video: a frame every t ms."),
)  # fmt: skip

_FLOW_OPTIONS = _options(
    click.option("--batch-rows", type=int, help="Records a batch.  [default: the model's max_batch_rows]"),
    click.option("--batch-bytes", default="64MiB", show_default=True, callback=_bytes, help="Or this much of records."),
    click.option(
        "--batch-delay-ms", type=float,
        help="Or when the first record has waited so long. Unset, batches depend on the source alone.",
    ),
    click.option("--prefetch-bytes", default="32MiB", show_default=True, callback=_bytes, help="Read ahead at most."),
    click.option("--instances", default=1, show_default=True, help="Loaded copies of the model, a thread each."),
    click.option(
        "--protocol", default="auto", show_default=True, type=click.Choice(["auto", "oip", "torchserve"]),
        help="What the endpoint speaks; auto goes by the URL.",
    ),
    click.option("--endpoint-model", help="The model's name, when the endpoint's URL is its root."),
    click.option("--in-flight", default=16, show_default=True, help="Requests under way to an endpoint."),
    click.option("--timeout-s", default=60.0, show_default=True, help="For one request to an endpoint."),
    click.option("--retry-s", default=120.0, show_default=True, help="How long a failing request is retried."),
)  # fmt: skip

_OUTPUT_OPTIONS = _options(
    click.option(
        "--output-format", default="csv", show_default=True, type=click.Choice(["csv", "jsonl", "parquet"]),
    ),
    click.option(
        "--join", default="none", show_default=True, type=click.Choice(["none", "input"]),
        help="Keep the input line beside its prediction.",
    ),
    click.option("--output-header/--no-output-header", default=None, help="A header in CSV parts."),
    click.option("--part-bytes", default="16MiB", show_default=True, callback=_bytes, help="A part's size, about."),
    click.option("--checkpoint-s", default=5.0, show_default=True, help="The most work that a kill can cost."),
    click.option("--resume", is_flag=True, help="Go on with the run that is there, or begin one."),
    click.option("--overwrite", is_flag=True, help="Delete the run that is there, and begin anew."),
    click.option("--watch", is_flag=True, help="Poll the source, and score what is new, until stopped."),
    click.option("--poll-s", default=5.0, show_default=True, help="Between two polls."),
    click.option("--json", "json_lines", is_flag=True, help="Progress and report as JSON lines on standard output."),
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", count=True, help="Structured logs on standard error; twice for more."),
)  # fmt: skip


@click.command("stream", epilog=_EPILOG, short_help="Score objects as streams; predictions in order.")
@click.argument("source", nargs=-1, required=True)
@click.option("--model", metavar="MODEL", help="model.onnx, file.py, file.py:Class or module:Class.")
@click.option("--endpoint", metavar="URL", help="A model served elsewhere, instead of --model.")
@click.option(
    "--output", required=True, metavar="DEST", help="A folder or prefix for the predictions' parts."
)
@_SOURCE_OPTIONS
@_FLOW_OPTIONS
@_OUTPUT_OPTIONS
def stream_command(source: tuple[str, ...], **given: Any) -> None:
    """Read SOURCE as byte streams, run a model over its records, write predictions in source order.

    SOURCE is an object, a prefix that ends with /, a glob, or manifest:URI, on s3://, gs://, az://,
    http(s)://, file://, or a plain path. Objects are never downloaded whole.
    """
    configure_logs(given["verbose"])
    if given["resume"] and given["overwrite"]:
        raise click.UsageError("--resume and --overwrite contradict each other")
    try:
        code = _stream(source[0] if len(source) == 1 else list(source), given)
    except HeadraceError as error:
        _log.debug("run broke", exc_info=True)
        _say_error(error, json_lines=given["json_lines"])
        code = 1
    sys.stdout.flush()
    raise SystemExit(code)


def _stream(source: str | list[str], given: dict[str, Any]) -> int:
    if_exists: IfExists = "resume" if given["resume"] else "overwrite" if given["overwrite"] else "refuse"
    opened = open_run(
        source,
        output=given["output"],
        model=given["model"],
        endpoint=given["endpoint"],
        settings=_settings(given),
        options=PredictorOptions(
            instances=given["instances"],
            protocol=given["protocol"],
            endpoint_model=given["endpoint_model"],
            in_flight_max=given["in_flight"],
            timeout_s=given["timeout_s"],
            retry_s=given["retry_s"],
        ),
        if_exists=if_exists,
    )
    style = choose_style(json_lines=given["json_lines"], quiet=given["quiet"])
    interrupted = _drain_on_interrupt(opened)
    display = Display(style, opened.run.progress, opened.predictor.statistics)
    if given["watch"]:
        return _watch(opened, display, poll_s=given["poll_s"], json_lines=given["json_lines"])
    report = execute(opened, display)
    _say_report(report, json_lines=given["json_lines"])
    return 130 if interrupted() and report.status == "drained" else report.exit_code


def _watch(opened: OpenedRun, display: Display, *, poll_s: float, json_lines: bool) -> int:
    watch = open_watch(opened, poll_s=poll_s)

    def stop(_number: int, _frame: FrameType | None) -> None:
        watch.stop()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    opened.predictor.start()
    try:
        with display:
            watch.serve(lambda report: _say_report(report, json_lines=json_lines))
    finally:
        opened.predictor.stop(drain=False)
    return 0


def _settings(given: dict[str, Any]) -> StreamSettings:
    text = given["text_column"]
    return StreamSettings(
        read=ReadOptions(
            compression=given["compression"],
            format=given["format_"],
            members=given["members"],
            delimiter=given["delimiter"],
            header=given["header"],
            record_bytes_max=given["record_bytes_max"],
            size_px=given["image_size"],
            window_ms=given["window_ms"],
            hop_ms=given["hop_ms"],
            sample_rate_hz=given["sample_rate_hz"],
            every_frames=given["every_frames"],
            every_ms=given["every_ms"],
        ),
        mapping=MappingOptions(
            columns=given["columns"],
            text_column=int(text) if text and text.isdigit() else text,
        ),
        flow=FlowSettings(
            batch_rows_max=given["batch_rows"],
            batch_bytes_max=given["batch_bytes"],
            batch_delay_ms=given["batch_delay_ms"],
            prefetch_bytes_max=given["prefetch_bytes"],
        ),
        output=OutputSettings(
            format=given["output_format"],
            join=given["join"],
            header=given["output_header"],
            part_bytes_max=given["part_bytes"],
            checkpoint_s=given["checkpoint_s"],
        ),
    )


def _drain_on_interrupt(opened: OpenedRun) -> Callable[[], bool]:
    """The first Ctrl-C (or SIGTERM) drains; the second ends at once, as a kill would."""
    asked: list[int] = []

    def on_signal(number: int, _: object) -> None:
        asked.append(number)
        if len(asked) > 1:
            os._exit(130)
        opened.run.drain()
        click.echo("stopping: what is under way is delivered; again to stop at once", err=True)

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    return lambda: bool(asked)


def _say_error(error: HeadraceError, *, json_lines: bool) -> None:
    if json_lines:
        line = {"event": "error", "type": type(error).__name__, "message": str(error)}
        click.echo(orjson.dumps(line))
    Console(stderr=True).print(f"[bold red]error:[/] {_plain(str(error))}", highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


def _peak_memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _say_report(report: Report, *, json_lines: bool) -> None:
    if json_lines:
        line = {"event": "report", **report.to_json(), "peak_memory_mb": round(_peak_memory_mb(), 1)}
        click.echo(orjson.dumps(line))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    failed = f"{report.rows_failed:,}"
    where = f"{report.output}part-*.failed.jsonl" if report.rows_failed or report.objects_broken else ""
    rows: list[tuple[str, str]] = [
        ("predictions", f"{report.output} ({report.parts} part{'s' if report.parts != 1 else ''})"),
        ("records in", f"{report.records_in:,} = {report.rows_out:,} out + {failed} failed"),
        ("failures", where),
        ("broken objects", f"{report.objects_broken:,}" if report.objects_broken else ""),
        ("rows/s", f"{report.rows_per_s:,.0f} over {report.elapsed_s:.2f} s"),
        ("instances busy", f"{report.instance_busy_share:.0%}, {report.model_calls:,} calls"),
        ("peak memory", f"{_peak_memory_mb():,.0f} MB"),
        ("status", report.status if report.status == "complete" else "stopped: go on with --resume"),
    ]
    for name, value in rows:
        if value:
            table.add_row(f"[bold]{name}[/]", _plain(value))
    Console().print(table, highlight=False)
