"""``headrace submit --batch``: submit the jobs of a JSON Lines file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from headrace.cli.job_display import print_submitted
from headrace.core.errors import ConfigError, HeadraceError
from headrace.jobs.job import Job
from headrace.reports.report import one_line


def submit_batch(client: Any, path: Path, defaults: Mapping[str, Any], *, params: Mapping[str, Any]) -> int:
    """Submit a job for each line of a file, which may be standard input. Return the exit status.

    A line is a JSON object with the fields of a submission; `defaults` are the fields that it leaves out.
    The idempotency key of a line is that of `defaults` and the number of the line.
    """
    numbers: list[int] = []
    jobs: list[dict[str, Any]] = []
    for number, fields in _read_lines(path):
        job = {**defaults, **fields}
        if "idempotency_key" in defaults and "idempotency_key" not in fields:
            job["idempotency_key"] += f"-{number}"
        numbers.append(number)
        jobs.append(job)
    if not jobs:
        raise ConfigError(f"{path}: has no jobs")
    results = client.submit_batch(jobs, all_or_nothing=params["all_or_nothing"])
    refused = 0
    for number, result in zip(numbers, results, strict=True):
        if isinstance(result, Job):
            print_submitted(result, json_lines=params["json_lines"])
        else:
            refused += 1
            _print_refusal(number, result, json_lines=params["json_lines"])
    click.echo(f"{len(results) - refused} submitted, {refused} refused", err=True)
    return 1 if refused else 0


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line that is not empty."""
    with click.open_file(str(path), "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                fields: Any = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ConfigError(f"{path}, line {number}: is not JSON: {error}") from None
            if not isinstance(fields, dict):
                raise ConfigError(f"{path}, line {number}: must be a JSON object with the fields of a job")
            yield number, fields


def _print_refusal(number: int, error: HeadraceError, *, json_lines: bool) -> None:
    text = one_line(str(error))
    if json_lines:
        line = {"event": "refused", "line": number, "type": type(error).__name__, "message": text}
        click.echo(orjson.dumps(line))
    click.echo(f"{click.style('refused:', fg='red', bold=True)} line {number}: {text}", err=True)
