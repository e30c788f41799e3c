"""``headrace jobs`` and ``headrace queues``: show and control jobs and their queues, and fetch results."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import orjson
from rich.table import Table

from headrace.cli.commands import JOB_SERVER_OPTIONS, DefaultListGroup, examples, print_each, run_job_command
from headrace.cli.job_display import (
    exit_status,
    failure_table,
    fetch_result,
    follow,
    print_job,
    print_job_json,
    print_jobs,
)
from headrace.cli.job_filters import (
    FILTER_OPTIONS,
    bulk_options,
    change_matching,
    has_filter,
    list_filters,
    state_option,
)
from headrace.cli.rerun import rerun_command
from headrace.cli.responses import plain_table, print_documents, printable
from headrace.jobs.actions import JobAction
from headrace.jobs.history import history_document
from headrace.jobs.job import Job, job_document
from headrace.jobs.state import JobState

_JOBS_EPILOG = """\b
Examples:
  List the newest jobs, or the failed jobs of a queue with a tag:
    headrace jobs list
    headrace jobs list --queue night --state failed --tag day=2026-11-21
  Show a job, follow it until it ends, and save its result:
    headrace jobs show 01a2007b-f2f8-7916-a901-e223a26ee99e
    headrace jobs watch 01a2007b-f2f8-7916-a901-e223a26ee99e
    headrace jobs result 01a2007b-f2f8-7916-a901-e223a26ee99e --output scores.csv
  Cancel two jobs, retry one, and retry all failed jobs of a queue after a look at them:
    headrace jobs cancel 01a2007b-f2f8-7916-a901-e223a26ee99e 01a2007b-f303-78e6-aa54-7e167cc78718
    headrace jobs retry 01a2007b-f2f8-7916-a901-e223a26ee99e
    headrace jobs retry --queue night --state failed --dry-run
    headrace jobs retry --queue night --state failed --yes
  Run a job again as a new one, or here in the debugger:
    headrace jobs rerun 01a2007b-f2f8-7916-a901-e223a26ee99e --wait
    headrace jobs rerun 01a2007b-f2f8-7916-a901-e223a26ee99e --local --model churn.py --pdb
  Check that a published result is still the one that its job wrote:
    headrace jobs verify 01a2007b-f2f8-7916-a901-e223a26ee99e
  Show the failed jobs in groups of equal failures:
    headrace jobs failures
  Print the ids of failed jobs, for a script:
    headrace jobs list --state failed --json | jq -r .id
"""
LIST_LIMIT: Final = 50


@click.group("jobs", cls=DefaultListGroup, epilog=_JOBS_EPILOG)
def jobs_command() -> None:
    """List and control the jobs of a running job API."""


@jobs_command.command(
    "list", epilog=examples("headrace jobs list --queue night --state failed --tag day=2026-11-21")
)
@FILTER_OPTIONS
@state_option(*JobState)
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=LIST_LIMIT, show_default=True, help="Limit of jobs."
)
@JOB_SERVER_OPTIONS
def list_command(**params: Any) -> None:
    """List jobs, newest first. The default of `headrace jobs`."""

    def call(client: Any) -> None:
        jobs = islice(client.list(**list_filters(params)), params["limit"])
        if not params["json_lines"]:
            print_jobs(jobs)
            return
        for job in jobs:
            print_job_json(job)

    run_job_command(params, call)


@jobs_command.command("show", epilog=examples("headrace jobs show 01a2007b-f2f8-7916-a901-e223a26ee99e"))
@click.argument("job_id", metavar="ID")
@JOB_SERVER_OPTIONS
def show_command(job_id: str, **params: Any) -> None:
    """Show a job with its history of failures."""

    def call(client: Any) -> None:

        job, history = client.get(job_id), client.history(job_id)
        if params["json_lines"]:
            document = {**job_document(job), "history": list(map(history_document, history))}
            click.echo(orjson.dumps(document))
        else:
            print_job(job, history)

    run_job_command(params, call)


jobs_command.add_command(rerun_command)


@jobs_command.command("failures", epilog=examples("headrace jobs failures"))
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 500),
    default=LIST_LIMIT,
    show_default=True,
    help="Limit of groups.",
)
@JOB_SERVER_OPTIONS
def failures_command(**params: Any) -> None:
    """Show the last failed jobs in groups of equal failures, the largest group first."""

    def call(client: Any) -> None:
        groups = client.failures(limit=params["limit"])
        print_documents(groups, params, failure_table, none="no failed jobs")

    run_job_command(params, call)


@jobs_command.command("watch", epilog=examples("headrace jobs watch 01a2007b-f2f8-7916-a901-e223a26ee99e"))
@click.argument("job_id", metavar="ID")
@JOB_SERVER_OPTIONS
def watch_command(job_id: str, **params: Any) -> None:
    """Follow a job until it ends. Exit with status 0 if it completed, else 1."""

    def call(client: Any) -> int:
        json_lines = params["json_lines"]
        job = follow(client.events(job_id), json_lines=json_lines) or client.get(job_id)
        if not json_lines:
            click.echo(job.state.value)
        return exit_status(job)

    run_job_command(params, call)


@jobs_command.command(
    "result", epilog=examples("headrace jobs result 01a2007b-f2f8-7916-a901-e223a26ee99e --output scores.csv")
)
@click.argument("job_id", metavar="ID")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="File for the result.")
@click.option("--wait", "wait", is_flag=True, help="Wait until the job ends.")
@JOB_SERVER_OPTIONS
def result_command(job_id: str, output: Path | None, wait: bool, **params: Any) -> None:
    """Print or save the result of a completed job."""

    def call(client: Any) -> int:
        job = client.wait(job_id) if wait else client.get(job_id)
        if wait and (status := exit_status(job)):
            return status
        fetch_result(client, job, output)
        return 0

    run_job_command(params, call)


@jobs_command.command("verify", epilog=examples("headrace jobs verify 01a2007b-f2f8-7916-a901-e223a26ee99e"))
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@JOB_SERVER_OPTIONS
def verify_command(job_ids: tuple[str, ...], **params: Any) -> None:
    """Compare published results with what their jobs wrote. Exit with status 1 for a difference.

    The objects are read whole.
    """

    def call(client: Any) -> int:
        checks = {job_id: client.check_published(job_id) for job_id in job_ids}
        for job_id, check in checks.items():
            writer = (
                f"  written by {check['found_job_id']}" if check["found_job_id"] not in ("", job_id) else ""
            )
            line = f"{job_id}  {check['status']}  {printable(check['uri'])}{writer}"
            click.echo(orjson.dumps({"id": job_id, **check}) if params["json_lines"] else line)
        return int(any(check["status"] != "equal" for check in checks.values()))

    run_job_command(params, call)


def _change_command(
    action: JobAction, *, ids: bool = True, states: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes the command of an action on jobs by their ids, or by conditions."""
    name = action.value
    by_id = (f"headrace jobs {name} 01a2007b-f2f8-7916-a901-e223a26ee99e",) if ids else ()
    epilog = examples(
        *by_id,
        f"headrace jobs {name} --queue night --tag day=2026-11-21 --dry-run",
        f"headrace jobs {name} --queue night --tag day=2026-11-21 --yes",
    )

    def decorate(function: Callable[..., None]) -> click.Command:
        command = bulk_options(action, states=states)(JOB_SERVER_OPTIONS(function))
        if ids:
            command = click.argument("job_ids", metavar="[ID...]", nargs=-1)(command)
        return jobs_command.command(name, epilog=epilog)(command)

    return decorate


@_change_command(JobAction.CANCEL)
def cancel_command(**params: Any) -> None:
    """Cancel pending or running jobs: those with these ids, or all that match conditions.

    A running job ends when its worker has stopped it.
    """
    _change(params, JobAction.CANCEL, lambda client: client.cancel)


@_change_command(JobAction.RETRY)
def retry_command(**params: Any) -> None:
    """Retry jobs that ended without a result, and publications that failed.

    These are the jobs with the ids, or all that match conditions. Their count of attempts starts again.
    """
    _change(params, JobAction.RETRY, lambda client: client.retry)


@_change_command(JobAction.DELETE)
def delete_command(**params: Any) -> None:
    """Delete ended jobs with their stored payloads and results.

    These are the jobs with the ids, or all that match conditions.
    """
    _change(params, JobAction.DELETE, lambda client: client.delete, label="deleted")


@_change_command(JobAction.REQUEUE, ids=False, states=(JobState.FAILED.value,))
def requeue_command(**params: Any) -> None:
    """Run ended jobs again, all that match conditions. Their earlier results are lost."""
    _change(params, JobAction.REQUEUE)


def _change(
    params: dict[str, Any],
    action: JobAction,
    of_client: Callable[[Any], Any] = lambda _: None,
    *,
    label: str = "",
) -> None:
    if has_filter(params):
        run_job_command(params, lambda client: change_matching(client, action, params))
        return

    def apply(client: Any, job_id: str) -> tuple[str, dict[str, str]]:
        job = of_client(client)(job_id)
        state = label or _state(job)
        return state, {"id": job_id, "state": state}

    run_job_command(
        params, lambda client: print_each(params["job_ids"], lambda each: apply(client, each), params)
    )


def _state(job: Job) -> str:
    return "cancel requested" if job.cancel_requested and not job.state.ended else job.state.value


_QUEUES_EPILOG = """\b
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
  Remove a queue that is no longer used:
    headrace queues remove night
"""
_QUEUE_COLUMNS = ("queue", "queued ", "later ", "blocked ", "running ", "oldest s ", "bound ", "state")


@click.group("queues", cls=DefaultListGroup, epilog=_QUEUES_EPILOG)
def queues_command() -> None:
    """List and control job queues. All commands but list and scale need a key with the scope operate.

    Without the scope monitor, a key sees its own queues and the jobs of its tenant only.
    """


@queues_command.command("list", epilog=examples("headrace queues list --json"))
@JOB_SERVER_OPTIONS
def list_queues_command(**params: Any) -> None:
    """List the visible queues with their numbers of jobs. The default of `headrace queues`."""

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
    """Limit the waiting jobs of each tenant in QUEUE to PENDING_MAX.

    Without PENDING_MAX, remove the limit.
    """
    run_job_command(params, lambda client: _print_queues([client.bound_queue(queue, pending_max)], params))


@queues_command.command(
    "remove", epilog=examples("headrace queues remove night", "headrace queues remove night --json")
)
@click.argument("queue")
@JOB_SERVER_OPTIONS
def remove_command(queue: str, **params: Any) -> None:
    """Remove QUEUE and its settings. Its ended jobs stay; a queue with other jobs is refused."""

    def call(client: Any) -> None:
        client.delete_queue(queue)
        removed = orjson.dumps({"queue": queue, "state": "removed"})
        click.echo(removed if params["json_lines"] else f"{queue}  removed")

    run_job_command(params, call)


@queues_command.command("scale", epilog=examples("headrace queues scale night --json | jq .desired"))
@click.argument("queue")
@JOB_SERVER_OPTIONS
def scale_command(queue: str, **params: Any) -> None:
    """Show the desired number of workers of QUEUE.

    It is the number of due and running jobs divided by the concurrency of a worker, up to 1000.
    """

    def call(client: Any) -> None:
        scale = client.scale(queue)
        if params["json_lines"]:
            click.echo(orjson.dumps(scale))
            return
        for name, value in scale.items():
            click.echo(f"{click.style(f'{name:<17}', bold=True)}  {value}")

    run_job_command(params, call)


def _print_queues(queues: Sequence[dict[str, Any]], params: dict[str, Any]) -> None:
    print_documents(queues, params, _queue_table, none="no queues: the first job creates one")


def _queue_table(queues: Sequence[dict[str, Any]]) -> Table:
    # Jobs of a region without workers wait forever; this column shows them.
    regions = any(_regions(queue) for queue in queues)
    table = plain_table(*_QUEUE_COLUMNS, *(["queued by region"] if regions else []))
    for queue in queues:
        table.add_row(
            queue["queue"],
            f"{queue['queued']:,}",
            f"{queue['later']:,}",
            f"{queue.get('blocked', 0):,}",  # older servers do not send this member
            f"{queue['running']:,}",
            f"{queue['oldest_seconds']:,.0f}",
            "-" if queue["pending_max"] is None else f"{queue['pending_max']:,}",
            _queue_state(queue),
            *([_regions(queue)] if regions else []),
        )
    return table


def _regions(queue: dict[str, Any]) -> str:
    # Older servers do not send this member.
    return ", ".join(
        f"{region} {jobs:,}" for region, jobs in sorted(queue.get("queued_by_region", {}).items())
    )


def _queue_state(queue: dict[str, Any]) -> str:
    words = [word for word in ("paused", "draining") if queue[word]]
    return ", ".join(words) or "open"
