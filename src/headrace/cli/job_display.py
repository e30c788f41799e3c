"""Print jobs to a terminal: tables, details, the progress of a running job, and results."""

import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import orjson
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from headrace.cli.responses import plain_table, print_table, printable
from headrace.core.errors import ConfigError
from headrace.jobs.history import HistoryEntry
from headrace.jobs.job import Job, JobProgress, job_document
from headrace.jobs.state import JobState
from headrace.reports.report import one_line

_COLOURS: Final = {
    JobState.BLOCKED: "yellow",
    JobState.PENDING: "yellow",
    JobState.RUNNING: "cyan",
    JobState.PUBLISHING: "cyan",
    JobState.COMPLETED: "green",
    JobState.PUBLISH_FAILED: "red",
    JobState.FAILED: "red",
    JobState.CANCELLED: "magenta",
    JobState.EXPIRED: "magenta",
}
_REASON_CHARS_MAX: Final = 60


def print_job_json(job: Job) -> None:
    """Print a job as one line of JSON."""
    click.echo(orjson.dumps(job_document(job)))


def print_submitted(job: Job, *, json_lines: bool) -> None:
    """Print the id of a submitted job, or with `json_lines` the job."""
    if json_lines:
        print_job_json(job)
    else:
        click.echo(job.id)


def print_jobs(jobs: Iterable[Job]) -> int:
    """Print a table of jobs and return their number."""
    listed = list(jobs)
    # The region column is left out if no job has a region.
    regions = any(job.spec.region for job in listed)
    table = plain_table(
        "id",
        "state",
        "queue",
        "model",
        *(["region"] if regions else []),
        "progress ",
        "attempt ",
        "age ",
        "why",
    )
    for job in listed:
        table.add_row(
            job.id,
            Text(job.state.value, _COLOURS[job.state]),
            job.spec.queue,
            job.spec.model or "-",
            *([job.spec.region or "-"] if regions else []),
            progress_text(job.progress) or "-",
            f"{job.attempt}/{job.spec.attempts_max}",
            age_text(job.created_at_ms),
            Text(_failure_text(job)),
        )
    if listed:
        print_table(table)
    else:
        click.echo("no matching jobs", err=True)
    return len(listed)


def failure_table(groups: Sequence[dict[str, Any]]) -> Table:
    """Return the table of groups of failed jobs."""
    table = plain_table("jobs ", "fingerprint", "model", "cause", "last", "last job", "failure")
    for group in groups:
        error = f"{group['error']}: " if group["error"] else ""
        table.add_row(
            f"{group['jobs']:,}",
            group["fingerprint"],
            printable(group["model"]),
            group["cause"],
            timestamp(group["last_at_ms"]),
            group["job_id"],
            printable(one_line(error + group["message"])),
        )
    return table


def print_job(job: Job, history: Iterable[HistoryEntry]) -> None:
    """Print the details and the history of a job."""
    for name, value in _figures(job).items():
        if value:
            click.echo(f"{click.style(f'{name:<12}', bold=True)}  {printable(value)}")
    for entry in history:
        name = entry.by or entry.worker
        by = f" by {printable(name)}" if name else ""
        message = f": {printable(one_line(entry.message))}" if entry.message else ""
        click.echo(f"  {timestamp(entry.at_ms)}  attempt {entry.attempt}  {entry.event.value}{by}{message}")


def progress_text(progress: JobProgress | None) -> str:
    """Return the progress of a job in a few words."""
    if progress is None:
        return ""
    share = progress.done / progress.total if progress.total else 1.0
    done = f"{progress.done:,}" if progress.total is None else f"{share:.0%} of {progress.total:,}"
    note = f", {printable(progress.note)}" if progress.note else ""
    across = progress.bytes_across_regions
    return (
        f"{done} {progress.unit}".rstrip() + note + (f", {decimal(across)} across regions" if across else "")
    )


def follow(jobs: Iterable[Job], *, json_lines: bool, quiet: bool = False) -> Job | None:
    """Show a job until it ends and return its last state, or None if there was none.

    The display is on standard error, or JSON lines on standard output.
    """
    last: Job | None = None
    with _open_display(json_lines=json_lines, quiet=quiet) as show:
        for last in jobs:
            show.update(last)
    return last


class _NoDisplay:
    def update(self, job: Job) -> None:
        """Show nothing."""


class _JsonDisplay:
    def update(self, job: Job) -> None:
        print_job_json(job)
        sys.stdout.flush()


class _LineDisplay:
    """Prints a line for each change, for output that is not a terminal."""

    def __init__(self) -> None:
        self._last_line = ""

    def update(self, job: Job) -> None:
        line = f"{job.id}  {job.state.value}  {progress_text(job.progress)}".rstrip()
        if line != self._last_line:
            click.echo(line, err=True)
            self._last_line = line


class _BarDisplay:
    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, state="", progress="")

    def update(self, job: Job) -> None:
        progress = job.progress or JobProgress()
        ended = job.state.ended
        total = progress.total or (1 if ended else None)
        self._bar.update(
            self._task,
            total=total,
            completed=total if job.state is JobState.COMPLETED else progress.done,
            state=f"[{_COLOURS[job.state]}]{job.state.value}[/]",
            progress=progress_text(job.progress),
        )


@contextmanager
def _open_display(*, json_lines: bool, quiet: bool) -> Generator[Any]:
    if json_lines or quiet or not sys.stderr.isatty():
        yield _JsonDisplay() if json_lines else _NoDisplay() if quiet else _LineDisplay()
        return
    columns = (
        BarColumn(bar_width=None),
        TextColumn("{task.fields[state]}"),
        TextColumn("{task.fields[progress]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), expand=True, transient=True) as bar:
        yield _BarDisplay(bar)


def _figures(job: Job) -> dict[str, str]:
    spec, result, failure = job.spec, job.result, job.failure
    return {
        "id": job.id,
        "state": job.state.value
        + (", cancel requested" if job.cancel_requested and not job.state.ended else ""),
        "queue": spec.queue,
        "kind": spec.kind,
        "model": spec.model,
        "priority": str(spec.priority),
        "attempt": f"{job.attempt} of {spec.attempts_max}" + (f" by {job.worker}" if job.worker else ""),
        "progress": progress_text(job.progress),
        "input": spec.input_uri,
        "region": _regions(job),
        "result": "" if result is None else _result(result),
        "failure": "" if failure is None else f"{failure.cause.value}: {one_line(failure.message)}",
        "details": "" if failure is None else failure.uri,
        "submitted": timestamp(job.created_at_ms),
        "due": timestamp(job.due_at_ms) if job.state is JobState.PENDING else "",
        "started": timestamp(job.started_at_ms),
        "ended": timestamp(job.ended_at_ms),
        "deadline": timestamp(job.deadline_at_ms),
        "after": ", ".join(spec.after),
        "tags": ", ".join(f"{name}={value}" for name, value in spec.tags.items()),
        "correlation": spec.correlation_id,
        "tenant": spec.tenant,
    }


def _regions(job: Job) -> str:
    where = f"processed in {job.worker_region}" if job.worker_region else ""
    return ", ".join(filter(None, (job.spec.region, where)))


def _result(result: Any) -> str:
    size = "" if result.size_bytes is None else f" ({decimal(result.size_bytes)})"
    return f"{result.published_uri or result.uri or 'kept by headrace'}{size}"


def _failure_text(job: Job) -> str:
    if job.failure is None:
        return ""
    text = printable(one_line(f"{job.failure.cause.value}: {job.failure.message}"))
    return text if len(text) <= _REASON_CHARS_MAX else f"{text[:_REASON_CHARS_MAX]}…"


def timestamp(at_ms: int | None) -> str:
    """Return a time of the ledger in UTC; "" for None."""
    if at_ms is None:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def age_text(at_ms: int) -> str:
    """Return the time since a moment, in its largest unit: ``5m``."""
    seconds = max(0, round(time.time() - at_ms / 1000))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


_TEXTS: Final = ("text/", "application/json", "application/jsonlines", "application/x-ndjson")


def fetch_result(client: Any, job: Job, output: Path | None) -> None:
    """Save or print a result. Raise ConfigError instead of printing binary data to a terminal."""
    if output is not None:
        size = client.save_result(job.id, output)
        click.echo(f"{decimal(size)} saved to {output}", err=True)
        return
    content_type = "" if job.result is None else job.result.content_type
    if sys.stdout.isatty() and not content_type.startswith(_TEXTS):
        raise ConfigError(f"the result ({content_type or 'bytes'}) is not text: save it with --output FILE")
    stdout = sys.stdout.buffer
    last = b"\n"
    for piece in client.stream_result(job.id):
        stdout.write(piece)
        last = piece[-1:] or last
    if sys.stdout.isatty() and last != b"\n":
        stdout.write(b"\n")
    stdout.flush()


def exit_status(job: Job) -> int:
    """Return 0 for a completed job. Otherwise print its state to standard error and return 1."""
    if job.state is JobState.COMPLETED:
        return 0
    why = "" if job.failure is None else f": {job.failure.cause.value}: {one_line(job.failure.message)}"
    if job.state is JobState.PUBLISH_FAILED:
        why += f"; publish it again with headrace jobs retry {job.id}, or use headrace jobs result"
    click.echo(
        f"{click.style('error:', fg='red', bold=True)} job {job.id} is {job.state.value}{why}", err=True
    )
    return 1
