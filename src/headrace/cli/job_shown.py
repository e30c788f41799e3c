"""Jobs on a terminal: tables, a job in full, and one that is followed while it runs."""

import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import click
import orjson
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from headrace.cli.answers import plain_table, printable, say_table
from headrace.cli.ending import one_line
from headrace.jobs.documents import job_document
from headrace.jobs.job import HistoryEntry, Job, Progress
from headrace.jobs.state import JobState

_COLOURS: Final = {
    JobState.PENDING: "yellow",
    JobState.RUNNING: "cyan",
    JobState.COMPLETED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "magenta",
    JobState.EXPIRED: "magenta",
}
_WHY_CHARS: Final = 60


def say_job_json(job: Job) -> None:
    """One job as one line of JSON."""
    click.echo(orjson.dumps(job_document(job)))


def say_jobs(jobs: Iterable[Job]) -> int:
    """A line a job; how many there were."""
    listed = list(jobs)
    # A column that is empty for whoever has no regions is left out.
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
            _age(job.created_at_ms),
            Text(_why(job)),
        )
    if listed:
        say_table(table)
    else:
        click.echo("there is no such job", err=True)
    return len(listed)


def say_job(job: Job, history: Iterable[HistoryEntry]) -> None:
    """A job in full, and what went wrong with it."""
    for name, value in _figures(job).items():
        if value:
            click.echo(f"{click.style(f'{name:<12}', bold=True)}  {printable(value)}")
    for entry in history:
        by = f" by {entry.by}" if entry.by else ""
        message = f": {printable(one_line(entry.message))}" if entry.message else ""
        click.echo(f"  {_moment(entry.at_ms)}  attempt {entry.attempt}  {entry.event.value}{by}{message}")


def progress_text(progress: Progress | None) -> str:
    """How far it is, in a few words."""
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
    """Show a job that is followed until it has ended, on standard error, or as JSON lines; the job as it was last."""
    last: Job | None = None
    with _shown(json_lines=json_lines, quiet=quiet) as show:
        for last in jobs:
            show.look(last)
    return last


class _Quiet:
    def look(self, job: Job) -> None:
        """Nothing."""


class _JsonLines:
    def look(self, job: Job) -> None:
        say_job_json(job)
        sys.stdout.flush()


class _Lines:
    """A line whenever there is something to say, for what is no terminal."""

    def __init__(self) -> None:
        self._said = ""

    def look(self, job: Job) -> None:
        line = f"{job.id}  {job.state.value}  {progress_text(job.progress)}".rstrip()
        if line != self._said:
            click.echo(line, err=True)
            self._said = line


class _Bars:
    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, state="", told="")

    def look(self, job: Job) -> None:
        progress = job.progress or Progress()
        ended = job.state.ended
        total = progress.total or (1 if ended else None)
        self._bar.update(
            self._task,
            total=total,
            completed=total if job.state is JobState.COMPLETED else progress.done,
            state=f"[{_COLOURS[job.state]}]{job.state.value}[/]",
            told=progress_text(job.progress),
        )


@contextmanager
def _shown(*, json_lines: bool, quiet: bool) -> Generator[Any]:
    if json_lines or quiet or not sys.stderr.isatty():
        yield _JsonLines() if json_lines else _Quiet() if quiet else _Lines()
        return
    columns = (
        BarColumn(bar_width=None), TextColumn("{task.fields[state]}"), TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True), expand=True, transient=True) as bar:
        yield _Bars(bar)


def _figures(job: Job) -> dict[str, str]:
    spec, result, failure = job.spec, job.result, job.failure
    return {
        "id": job.id,
        "state": job.state.value
        + (", to be cancelled" if job.cancel_requested and not job.state.ended else ""),
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
        "submitted": _moment(job.created_at_ms),
        "due": _moment(job.due_at_ms) if job.state is JobState.PENDING else "",
        "begun": _moment(job.started_at_ms),
        "ended": _moment(job.ended_at_ms),
        "deadline": _moment(job.deadline_at_ms),
        "tags": ", ".join(f"{name}={value}" for name, value in spec.tags.items()),
        "correlation": spec.correlation_id,
        "tenant": spec.tenant,
    }


def _regions(job: Job) -> str:
    where = f"worked on in {job.worker_region}" if job.worker_region else ""
    return ", ".join(filter(None, (job.spec.region, where)))


def _result(result: Any) -> str:
    size = "" if result.size_bytes is None else f" ({decimal(result.size_bytes)})"
    return f"{result.published_uri or result.uri}{size}"


def _why(job: Job) -> str:
    if job.failure is None:
        return ""
    text = printable(one_line(f"{job.failure.cause.value}: {job.failure.message}"))
    return text if len(text) <= _WHY_CHARS else f"{text[:_WHY_CHARS]}…"


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _age(at_ms: int) -> str:
    seconds = max(0, round(time.time() - at_ms / 1000))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
