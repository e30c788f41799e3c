"""Print or save the result of a job, or report its failure."""

import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.filesize import decimal

from headrace.core.errors import ConfigError
from headrace.jobs.job import Job
from headrace.jobs.state import JobState
from headrace.reports.report import one_line

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
    click.echo(
        f"{click.style('error:', fg='red', bold=True)} job {job.id} is {job.state.value}{why}", err=True
    )
    return 1
