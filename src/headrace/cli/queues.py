"""``headrace queues``: queues of a running job API: list, pause, resume, drain, bound, scale."""

from typing import Any

import click
import orjson

from headrace.cli.groups import ListsByDefault
from headrace.cli.job_server import ask_jobs, job_server_options

_EPILOG = """\b
Examples:
  What waits where:
    headrace queues list
  Give out no jobs of a queue for a while, then go on:
    headrace queues pause night
    headrace queues resume night
  Take no new ones, and work on what is there; take at most a thousand that wait:
    headrace queues drain night
    headrace queues bound night 1000
  How many workers it wants, for a script:
    headrace queues scale night --json | jq .desired
"""
_COLUMNS = ("queue", "queued ", "later ", "running ", "oldest s ", "bound ", "state")


@click.group("queues", cls=ListsByDefault, epilog=_EPILOG, short_help="Queues of a running job API.")
def queues_command() -> None:
    """Queues: list, pause, resume, drain, bound, scale. All but list and scale need a key that operates."""


@queues_command.command("list")
@job_server_options
def list_command(**given: Any) -> None:
    """All queues, and how many jobs are in them: what `headrace queues` alone does."""

    def ask(client: Any) -> None:
        _say(client.queues(), given)

    ask_jobs(given, ask)


@queues_command.command("pause")
@click.argument("queue")
@job_server_options
def pause_command(queue: str, **given: Any) -> None:
    """Give out none of QUEUE's jobs. What runs goes on, and submissions are taken."""
    ask_jobs(given, lambda client: _say([client.pause_queue(queue)], given))


@queues_command.command("resume")
@click.argument("queue")
@job_server_options
def resume_command(queue: str, **given: Any) -> None:
    """Give out QUEUE's jobs, and take submissions, again."""
    ask_jobs(given, lambda client: _say([client.resume_queue(queue)], given))


@queues_command.command("drain")
@click.argument("queue")
@job_server_options
def drain_command(queue: str, **given: Any) -> None:
    """Take no submissions to QUEUE. What is in it is worked on."""
    ask_jobs(given, lambda client: _say([client.drain_queue(queue)], given))


@queues_command.command("bound")
@click.argument("queue")
@click.argument("pending_max", type=click.IntRange(min=0), required=False)
@job_server_options
def bound_command(queue: str, pending_max: int | None, **given: Any) -> None:
    """Let at most PENDING_MAX jobs wait in QUEUE; any number, where it is left out."""
    ask_jobs(given, lambda client: _say([client.bound_queue(queue, pending_max)], given))


@queues_command.command("scale")
@click.argument("queue")
@job_server_options
def scale_command(queue: str, **given: Any) -> None:
    """How many workers QUEUE wants: its jobs that are due or run, over what a worker runs at once."""

    def ask(client: Any) -> None:
        scale = client.scale(queue)
        if given["json_lines"]:
            click.echo(orjson.dumps(scale))
            return
        for name, value in scale.items():
            click.echo(f"{click.style(f'{name:<17}', bold=True)}  {value}")

    ask_jobs(given, ask)


def _say(queues: Any, given: dict[str, Any]) -> None:
    if given["json_lines"]:
        for queue in queues:
            click.echo(orjson.dumps(queue))
        return
    if not queues:
        click.echo("there is no queue: the first job makes one", err=True)
        return
    from headrace.cli.answers import plain_table, say_table  # noqa: PLC0415 - see cli.infer

    # A column for whoever has regions: what waits in one that no worker takes is seen here.
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
    say_table(table)


def _regions(queue: dict[str, Any]) -> str:
    # An older API does not tell.
    return ", ".join(
        f"{region} {jobs:,}" for region, jobs in sorted(queue.get("queued_by_region", {}).items())
    )


def _state(queue: dict[str, Any]) -> str:
    words = [word for word in ("paused", "draining") if queue[word]]
    return ", ".join(words) or "open"
