"""``headrace queues``: list, pause, resume, drain, limit and scale job queues."""

from typing import Any

import click
import orjson

from headrace.cli.commands import DefaultListGroup, examples
from headrace.cli.responses import plain_table, print_table
from headrace.cli.servers import JOB_SERVER_OPTIONS, run_job_command

_EPILOG = """\b
Examples:
  List all queues with their numbers of jobs:
    headrace queues list
  Pause a queue, then resume it:
    headrace queues pause night
    headrace queues resume night
  Refuse new jobs of a queue; limit a queue to a thousand waiting jobs:
    headrace queues drain night
    headrace queues bound night 1000
  Print the desired number of workers, for a script:
    headrace queues scale night --json | jq .desired
"""
_COLUMNS = ("queue", "queued ", "later ", "running ", "oldest s ", "bound ", "state")


@click.group("queues", cls=DefaultListGroup, epilog=_EPILOG)
def queues_command() -> None:
    """List and control job queues. All commands but list and scale need a key with the scope operate."""


@queues_command.command("list", epilog=examples("headrace queues list --json"))
@JOB_SERVER_OPTIONS
def list_command(**params: Any) -> None:
    """List all queues with their numbers of jobs. The default of `headrace queues`."""

    def call(client: Any) -> None:
        _print_queues(client.queues(), params)

    run_job_command(params, call)


@queues_command.command("pause", epilog=examples("headrace queues pause night"))
@click.argument("queue")
@JOB_SERVER_OPTIONS
def pause_command(queue: str, **params: Any) -> None:
    """Stop workers from taking jobs of QUEUE. Running jobs continue, and submissions are accepted."""
    run_job_command(params, lambda client: _print_queues([client.pause_queue(queue)], params))


@queues_command.command("resume", epilog=examples("headrace queues resume night"))
@click.argument("queue")
@JOB_SERVER_OPTIONS
def resume_command(queue: str, **params: Any) -> None:
    """End the pause or drain of QUEUE.

    Workers take its jobs again, and submissions are accepted.
    """
    run_job_command(params, lambda client: _print_queues([client.resume_queue(queue)], params))


@queues_command.command("drain", epilog=examples("headrace queues drain night"))
@click.argument("queue")
@JOB_SERVER_OPTIONS
def drain_command(queue: str, **params: Any) -> None:
    """Refuse submissions to QUEUE. Workers still take its jobs."""
    run_job_command(params, lambda client: _print_queues([client.drain_queue(queue)], params))


@queues_command.command("bound", epilog=examples("headrace queues bound night 1000"))
@click.argument("queue")
@click.argument("pending_max", type=click.IntRange(min=0), required=False)
@JOB_SERVER_OPTIONS
def bound_command(queue: str, pending_max: int | None, **params: Any) -> None:
    """Limit the waiting jobs of QUEUE to PENDING_MAX. Without PENDING_MAX, remove the limit."""
    run_job_command(params, lambda client: _print_queues([client.bound_queue(queue, pending_max)], params))


@queues_command.command("scale", epilog=examples("headrace queues scale night --json | jq .desired"))
@click.argument("queue")
@JOB_SERVER_OPTIONS
def scale_command(queue: str, **params: Any) -> None:
    """Show the desired number of workers of QUEUE.

    It is the number of due and running jobs divided by the concurrency of a worker.
    """

    def call(client: Any) -> None:
        scale = client.scale(queue)
        if params["json_lines"]:
            click.echo(orjson.dumps(scale))
            return
        for name, value in scale.items():
            click.echo(f"{click.style(f'{name:<17}', bold=True)}  {value}")

    run_job_command(params, call)


def _print_queues(queues: Any, params: dict[str, Any]) -> None:
    if params["json_lines"]:
        for queue in queues:
            click.echo(orjson.dumps(queue))
        return
    if not queues:
        click.echo("no queues: the first job creates one", err=True)
        return

    # Jobs of a region without workers wait forever; this column shows them.
    regions = any(_regions(queue) for queue in queues)
    table = plain_table(*_COLUMNS, *(["queued by region"] if regions else []))
    for queue in queues:
        table.add_row(
            queue["queue"],
            f"{queue['queued']:,}",
            f"{queue['later']:,}",
            f"{queue['running']:,}",
            f"{queue['oldest_seconds']:,.0f}",
            "-" if queue["pending_max"] is None else f"{queue['pending_max']:,}",
            _state(queue),
            *([_regions(queue)] if regions else []),
        )
    print_table(table)


def _regions(queue: dict[str, Any]) -> str:
    # Older servers do not send this member.
    return ", ".join(
        f"{region} {jobs:,}" for region, jobs in sorted(queue.get("queued_by_region", {}).items())
    )


def _state(queue: dict[str, Any]) -> str:
    words = [word for word in ("paused", "draining") if queue[word]]
    return ", ".join(words) or "open"
