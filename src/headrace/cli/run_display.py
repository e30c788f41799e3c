"""Show a run on the terminal or as JSON lines: its plan, its progress and its report.

A progress bar or plain lines go to standard error, all else to standard output.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, cast

import click
import numpy as np
import orjson
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.app.runs import DryRun
from headrace.cli.commands import INTERRUPTED
from headrace.core.predictor import PredictorStatistics
from headrace.reports.report import REPORT_NAME, Report, one_line, subset_text
from headrace.runs.sample import Trial, TriedRecord
from headrace.runs.settings import RunSettings
from headrace.runs.work import RunProgress

Style = Literal["bar", "lines", "json", "none"]

_INTERVAL_S: dict[Style, float] = {"bar": 0.2, "lines": 5.0, "json": 1.0, "none": 3600.0}
_LISTING = "listing the source"
_NAMES_SHOWN = 2


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """The progress of a run at one moment."""

    bytes_read: int
    bytes_total: int
    objects_read: int
    objects_total: int
    records: int
    rows_failed: int
    rows_per_s: float
    instance_busy_share: float
    reading: tuple[str, ...] = ()
    """The objects that are being read; empty if the run does not report them."""
    records_replayed: int = 0
    records_to_replay: int = 0
    """Records sent to the model again to restore sequence states, before any new record."""
    is_listing: bool = False
    """True while the source is being listed: the totals still grow."""


class ProgressDisplay:
    """A context manager that shows a run's counters at regular intervals, in a thread."""

    def __init__(
        self,
        style: Style,
        counters: RunProgress,
        statistics: Callable[[], PredictorStatistics],
        *,
        reading: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._style: Style = style
        self._counters = counters
        self._statistics = statistics
        self._reading = reading
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-display", daemon=True)
        self._console = Console(stderr=True)
        self._started_s = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._style == "bar":
            self._bar = Progress(
                BarColumn(bar_width=None),
                TextColumn("{task.fields[done]}"),
                TextColumn("[bold]{task.fields[records]}[/] records{task.fields[failed]}"),
                TextColumn("{task.fields[rate]} rows/s"),
                TextColumn("busy {task.fields[busy]}{task.fields[eta]}"),
                TimeRemainingColumn(compact=True),
                TextColumn("[dim]{task.fields[reading]}[/]"),
                console=self._console,
                expand=True,
            )
            self._bar.add_task(
                "", total=None, done=_LISTING, records="0", failed="", rate="0", busy="0%", eta="", reading=""
            )
            self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._bar:
            self._show()
            self._bar.stop()

    def _run(self) -> None:
        while not self._ended.wait(_INTERVAL_S[self._style]):
            self._show()

    def snapshot(self) -> ProgressSnapshot:
        """Return the current progress."""
        counters, now = self._counters, time.monotonic()
        records = counters.records
        rate = (records - counters.records_before) / max(now - self._started_s, 1e-9)
        return ProgressSnapshot(
            bytes_read=counters.bytes_before + counters.bytes_read,
            bytes_total=counters.bytes_total,
            objects_read=counters.objects_before + counters.objects_read,
            objects_total=counters.objects_total,
            records=records,
            rows_failed=counters.rows_failed,
            rows_per_s=round(rate, 1),
            instance_busy_share=round(self._statistics().busy_share, 3),
            reading=tuple(self._reading()) if self._reading else (),
            records_replayed=counters.records_replayed,
            records_to_replay=counters.records_to_replay,
            is_listing=counters.is_listing,
        )

    def _show(self) -> None:
        snapshot = self.snapshot()
        if self._style == "json":
            line = {"event": "progress"} | {k: getattr(snapshot, k) for k in ProgressSnapshot.__slots__}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        elif self._bar:
            self._bar.update(
                self._bar.task_ids[0],
                total=None if snapshot.is_listing else snapshot.bytes_total or None,
                completed=snapshot.bytes_read,
                done=_progress_text(snapshot, "/", percent=True),
                records=f"{snapshot.records:,}",
                rate=f"{snapshot.rows_per_s:,.0f}",
                busy=f"{snapshot.instance_busy_share:.0%}",
                failed=f" [red]{snapshot.rows_failed:,} failed[/]" if snapshot.rows_failed else "",
                eta=" ETA" if snapshot.bytes_total and not snapshot.is_listing else "",
                reading=_objects_text(snapshot),
            )
        elif self._style == "lines":
            self._console.print(
                f"{_progress_text(snapshot, ' of ')}, {snapshot.records:,} records, "
                f"{snapshot.rows_per_s:,.0f} rows/s, {snapshot.rows_failed:,} failed, "
                f"instances busy {snapshot.instance_busy_share:.0%}{_objects_text(snapshot)}",
                highlight=False,
                soft_wrap=True,
            )


def _objects_text(snapshot: ProgressSnapshot) -> str:
    """Return the number of finished objects and the names of objects that are being read."""
    if not snapshot.reading:
        return ""
    names = ", ".join(uri.rsplit("/", 1)[-1] for uri in snapshot.reading[:_NAMES_SHOWN])
    more = ", …" if len(snapshot.reading) > _NAMES_SHOWN else ""
    return f"  {snapshot.objects_read:,}/{snapshot.objects_total:,} {names}{more}"


def _progress_text(snapshot: ProgressSnapshot, separator: str, *, percent: bool = False) -> str:
    """Return the size read so far, with the total if it is known.

    Some web servers do not report the size of an object.
    """
    if not snapshot.objects_total:
        return _LISTING
    if snapshot.records_replayed < snapshot.records_to_replay:
        replayed = f"{snapshot.records_replayed:,}{separator}{snapshot.records_to_replay:,}"
        return f"replaying {replayed} records to restore sequence states"
    read, total = decimal(snapshot.bytes_read), snapshot.bytes_total
    if snapshot.is_listing:
        return f"{read} ({snapshot.objects_total:,} objects listed so far)"
    if not total:
        return read
    share = f"{snapshot.bytes_read / total:>4.0%} " if percent else ""
    return f"{share}{read}{separator}{decimal(total)}"


def choose_style(*, json_lines: bool, quiet: bool) -> Style:
    """Return the style: JSON or none on request, otherwise a bar on a terminal or lines."""
    if json_lines:
        return "json"
    if quiet:
        return "none"
    return "bar" if sys.stderr.isatty() else "lines"


def exit_status(report: Report) -> int:
    """Return the command's exit status: the report's exit code, or 130 after an interruption."""
    return INTERRUPTED if report.status == "drained" else report.exit_code


def print_report(
    report: Report,
    progress: RunProgress | None = None,
    *,
    json_lines: bool,
    page: str | None = None,
) -> int:
    """Print a report to standard output and return the exit status.

    The report is one JSON line, or one line for each figure. `progress` adds the first failure,
    since it is often the cause of all failures. `page` is the URI of the HTML report.
    """
    status = exit_status(report)
    if json_lines:
        line = {"event": "report", **report.to_json(), "exit_code": status}
        click.echo(orjson.dumps(line))
        return status
    print_figures(report.figures(progress) | {"page": page or ""})
    return status


def print_figures(figures: dict[str, str]) -> None:
    """Print the figures that are not empty by name. A figure may have several lines."""
    for name, value in figures.items():
        if value:
            first, *more = value.splitlines()
            click.echo(f"{click.style(f'{name:<14}', bold=True)}  {first}")
            for line in more:
                click.echo(f"{'':<14}  {line}")


def print_tracebacks(progress: RunProgress) -> None:
    """Print the first tracebacks of a model's unexpected exceptions to standard error."""
    tracebacks = list(progress.tracebacks.values())
    for traceback in tracebacks[:_TRACEBACKS_SHOWN]:
        heading = traceback.with_place(f"the model raised {traceback.kind}")
        click.echo(f"{click.style(heading, bold=True)}\n{traceback.text}\n", err=True)
    if len(tracebacks) > _TRACEBACKS_SHOWN:
        click.echo(f"… and {len(tracebacks) - _TRACEBACKS_SHOWN} more in {REPORT_NAME}\n", err=True)


_TRACEBACKS_SHOWN: Final = 3
_OBJECTS_SHOWN: Final = 5
_TEXT_SHOWN: Final = 100
_VALUES_SHOWN: Final = 8


def print_dry_run(found: DryRun, settings: RunSettings, *, json_lines: bool) -> int:
    """Print the plan of a dry run and return the exit status."""
    if json_lines:
        click.echo(orjson.dumps(_dry_json(found, settings)))
        return 0
    plan, subset = found.plan, settings.subset
    sizes = [o.info.size_bytes for o in plan.objects]
    shards = sum(len(task.shards) for task in plan.tasks)
    unknown = "" if None not in sizes else ", and more of unknown size"
    figures = {
        "objects": f"{len(plan.objects):,}, {plan.nbytes:,} bytes{unknown}",
        "work": f"{len(plan.tasks):,} tasks, {shards:,} shards" if plan.tasks else "in order",
        "outputs": "\n".join(
            [f"{o.info.uri} → {o.output or 'parts'}" for o in plan.objects[:_OBJECTS_SHOWN]]
            + (["…"] if len(plan.objects) > _OBJECTS_SHOWN else [])
        ),
        "subset": subset_text(subset.limit, subset.sample, subset.sample_seed),
        "read": _read_text(settings),
        "written": _output_text(settings),
        "schema": found.trial.schema.text(),
        "sample": found.trial.text(),
        "failures": settings.failures.describe(),
    }
    print_figures(figures)
    print_tried(found.trial.first)
    return 0


def print_tried(records: Sequence[TriedRecord], label: str = "model input") -> None:
    """Print sampled records, with the values made from them, each after `label`, or their failures."""
    for number, seen in enumerate(records, 1):
        click.echo(click.style(f"\nrecord {number}", bold=True) + f"  {seen.position}")
        click.echo(f"  as read           {_excerpt(seen.record)}")
        if seen.failure is not None:
            click.echo(f"  would fail        {one_line(seen.failure.why)}")
        for name, value in seen.inputs.items():
            click.echo(f"  {label:<16}  {name} = {_value(value)}")


def _read_text(settings: RunSettings) -> str:
    read = settings.read
    text = f"{read.format}, compression {read.compression}, header {read.header}"
    if settings.mapping.input_filter != "$":
        text += f", input filter {settings.mapping.input_filter}"
    return text


def _output_text(settings: RunSettings) -> str:
    output = settings.output
    text = f"{output.format}, join {output.join}, assemble {output.assemble}"
    if output.partition_by:
        text += f", partitions by {', '.join(output.partition_by)}"
    return text if output.output_filter == "$" else f"{text}, output filter {output.output_filter}"


def _dry_json(found: DryRun, settings: RunSettings) -> dict[str, Any]:
    return {
        "event": "dry-run",
        "objects": [
            {"uri": o.info.uri, "size_bytes": o.info.size_bytes, "output": o.output}
            for o in found.plan.objects
        ],
        "size_bytes": found.plan.nbytes,
        "tasks": len(found.plan.tasks),
        "shards": sum(len(task.shards) for task in found.plan.tasks),
        "settings": settings.identity(),
        "failure_limit": settings.failures.describe(),
        **trial_json(found.trial),
    }


def trial_json(trial: Trial) -> dict[str, Any]:
    """Return a trial for programs."""
    failed = trial.first_failure
    return {
        "schema": trial.schema.to_json(),
        "sample": {
            "objects": trial.objects,
            "records": trial.records,
            "decoded": trial.decoded,
            "first_failure": None if failed is None else _tried_json(failed),
        },
        "records": [_tried_json(record) for record in trial.first],
    }


def _tried_json(seen: TriedRecord) -> dict[str, Any]:
    return {
        "place": seen.position,
        "record": seen.record.decode(errors="backslashreplace"),
        "inputs": {
            name: {"shape": list(np.shape(value)), "data": _plain(value)}
            for name, value in seen.inputs.items()
        },
        "failure": None if seen.failure is None else seen.failure.why,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    plain = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(plain, list):
        return plain
    return [_plain(v) for v in cast("list[Any]", plain)]


def _excerpt(record: bytes) -> str:
    text = record[: 4 * _TEXT_SHOWN].decode(errors="backslashreplace")
    text = one_line(text)
    return text if len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + " …"


def _value(value: Any) -> str:
    """Return a row of an input: its first values, type and shape."""
    if isinstance(value, str | bytes):
        return repr(value if len(value) <= _TEXT_SHOWN else value[:_TEXT_SHOWN])
    array = np.asarray(value)
    if array.dtype == object:
        return repr(array.tolist())[:_TEXT_SHOWN]
    if array.ndim == 0:
        return f"{array.item()!r} ({array.dtype})"
    shown = ", ".join(f"{v:g}" for v in array.reshape(-1)[:_VALUES_SHOWN].tolist())
    more = ", …" if array.size > _VALUES_SHOWN else ""
    return f"[{shown}{more}] ({array.dtype}, {' x '.join(map(str, array.shape))})"
