"""What came of a job: its result to a file or to standard output, or why there is none."""

import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.filesize import decimal

from headrace.cli.ending import one_line
from headrace.core.errors import ConfigError
from headrace.jobs.job import Job
from headrace.jobs.state import JobState

_TEXTS: Final = ("text/", "application/json", "application/jsonlines", "application/x-ndjson")


def fetch_result(client: Any, job: Job, output: Path | None) -> None:
    """Save the result, or print it. ConfigError rather than bytes on a terminal."""
    if output is not None:
        size = client.save_result(job.id, output)
        click.echo(f"{decimal(size)} saved to {output}", err=True)
        return
    content_type = "" if job.result is None else job.result.content_type
    if sys.stdout.isatty() and not content_type.startswith(_TEXTS):
        raise ConfigError(
            f"the result is {content_type or 'bytes'}, which is not for a terminal: give --output FILE"
        )
    stdout = sys.stdout.buffer
    last = b"\n"
    for piece in client.stream_result(job.id):
        stdout.write(piece)
        last = piece[-1:] or last
    if sys.stdout.isatty() and last != b"\n":
        stdout.write(b"\n")
    stdout.flush()


def exit_status(job: Job) -> int:
    """0 for a completed job; else 1, and on standard error what it came to."""
    if job.state is JobState.COMPLETED:
        return 0
    why = "" if job.failure is None else f": {job.failure.cause.value}: {one_line(job.failure.message)}"
    click.echo(
        f"{click.style('error:', fg='red', bold=True)} job {job.id} is {job.state.value}{why}", err=True
    )
    return 1
