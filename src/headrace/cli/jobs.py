"""``headrace jobs``: jobs of a running job API: list, show, watch, cancel, retry, result, requeue, delete."""

import sys
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import orjson

from headrace.cli.ending import say_error
from headrace.cli.groups import ListsByDefault
from headrace.cli.job_server import ask_jobs, job_server_options
from headrace.cli.submit import pairs
from headrace.core.errors import HeadraceError
from headrace.jobs.job import Job
from headrace.jobs.state import JobState

_EPILOG = """\b
Examples:
  The newest jobs; those of a queue that failed today:
    headrace jobs list
    headrace jobs list --queue night --state failed --tag day=2026-11-21
  One in full; one as it runs, until it ends; its result:
    headrace jobs show 01a2007b-f2f8-7916-a901-e223a26ee99e
    headrace jobs watch 01a2007b-f2f8-7916-a901-e223a26ee99e
    headrace jobs result 01a2007b-f2f8-7916-a901-e223a26ee99e --output scores.csv
  Stop two; try one again; try again all that failed, after a look at which they are:
    headrace jobs cancel 01a2007b-f2f8-7916-a901-e223a26ee99e 01a2007b-f303-78e6-aa54-7e167cc78718
    headrace jobs retry 01a2007b-f2f8-7916-a901-e223a26ee99e
    headrace jobs requeue --queue night --dry-run
    headrace jobs requeue --queue night --yes
  For a script:
    headrace jobs list --state failed --json | jq -r .id
"""
LISTED: Final = 50
REQUEUED_MAX: Final = 10_000
_ENDED: Final = tuple(
    sorted(state.value for state in JobState if state.ended and state is not JobState.COMPLETED)
)


def _filters(command: Any) -> Any:
    for option in reversed(
        (
            click.option("--queue", "-q", default="", help="Of this queue."),
            click.option("--model", "-m", default="", help="Of this model."),
            click.option("--kind", default="", help="Of this kind."),
            click.option(
                "--tag", "tags", multiple=True, metavar="NAME=VALUE", help="With this tag; all of several."
            ),
            click.option("--correlation-id", default="", help="By your own name for them."),
            click.option("--tenant", help="For keys that see everybody's jobs."),
        )
    ):
        command = option(command)
    return command


@click.group("jobs", cls=ListsByDefault, epilog=_EPILOG, short_help="Jobs of a running job API.")
def jobs_command() -> None:
    """Jobs: list, show, watch, cancel, retry, result, requeue, delete."""


@jobs_command.command("list")
@_filters
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([s.value for s in JobState]),
    help="May be repeated.",
)
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=LISTED, show_default=True, help="At most so many."
)
@job_server_options
def list_command(**given: Any) -> None:
    """Jobs, newest first: what `headrace jobs` alone does."""

    def ask(client: Any) -> None:
        from headrace.cli.job_shown import say_job_json, say_jobs  # noqa: PLC0415 - see cli.infer

        jobs = islice(client.list(**_wanted(given), states=given["states"]), given["limit"])
        if not given["json_lines"]:
            say_jobs(jobs)
            return
        for job in jobs:
            say_job_json(job)

    ask_jobs(given, ask)


@jobs_command.command("show")
@click.argument("job_id", metavar="ID")
@job_server_options
def show_command(job_id: str, **given: Any) -> None:
    """One job in full, and what went wrong with it."""

    def ask(client: Any) -> None:
        from headrace.cli.job_shown import say_job  # noqa: PLC0415 - see cli.infer
        from headrace.jobs.documents import history_document, job_document  # noqa: PLC0415

        job, history = client.get(job_id), client.history(job_id)
        if given["json_lines"]:
            document = {**job_document(job), "history": list(map(history_document, history))}
            click.echo(orjson.dumps(document))
        else:
            say_job(job, history)

    ask_jobs(given, ask)


@jobs_command.command("watch")
@click.argument("job_id", metavar="ID")
@job_server_options
def watch_command(job_id: str, **given: Any) -> None:
    """Follow a job until it has ended. Exit status 0 where it is completed then, else 1."""

    def ask(client: Any) -> int:
        from headrace.cli.job_results import exit_status  # noqa: PLC0415 - see cli.infer
        from headrace.cli.job_shown import follow  # noqa: PLC0415

        json_lines = given["json_lines"]
        job = follow(client.events(job_id), json_lines=json_lines) or client.get(job_id)
        if not json_lines:
            click.echo(job.state.value)
        return exit_status(job)

    ask_jobs(given, ask)


@jobs_command.command("result")
@click.argument("job_id", metavar="ID")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Save it there.")
@click.option("--wait", "waited", is_flag=True, help="Until the job has ended.")
@job_server_options
def result_command(job_id: str, output: Path | None, waited: bool, **given: Any) -> None:
    """A completed job's result, on standard output or as a file."""

    def ask(client: Any) -> int:
        from headrace.cli.job_results import exit_status, fetch_result  # noqa: PLC0415 - see cli.infer

        job = client.wait(job_id) if waited else client.get(job_id)
        if waited and (status := exit_status(job)):
            return status
        fetch_result(client, job, output)
        return 0

    ask_jobs(given, ask)


@jobs_command.command("cancel")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@job_server_options
def cancel_command(job_ids: tuple[str, ...], **given: Any) -> None:
    """Cancel jobs: pending ones at once, running ones as soon as they are stopped."""
    ask_jobs(given, lambda client: _each(job_ids, client.cancel, given))


@jobs_command.command("retry")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@job_server_options
def retry_command(job_ids: tuple[str, ...], **given: Any) -> None:
    """Try jobs again that ended without a result, with all their attempts before them."""
    ask_jobs(given, lambda client: _each(job_ids, client.retry, given))


@jobs_command.command("delete")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@job_server_options
def delete_command(job_ids: tuple[str, ...], **given: Any) -> None:
    """Remove jobs that have ended, with what was stored for them alone."""

    def ask(client: Any) -> int:
        return _each(job_ids, client.delete, given, said="deleted")

    ask_jobs(given, ask)


@jobs_command.command("requeue")
@_filters
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_ENDED), default=("failed",), show_default=True,
    help="May be repeated.",
)  # fmt: skip
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, REQUEUED_MAX),
    default=1000,
    show_default=True,
    help="At most so many.",
)
@click.option("--dry-run", is_flag=True, help="Only list them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@job_server_options
def requeue_command(dry_run: bool, yes: bool, **given: Any) -> None:
    """Try again all that fit: dead jobs, by queue, model or tag."""

    def ask(client: Any) -> int:
        from headrace.cli.job_shown import say_job_json, say_jobs  # noqa: PLC0415 - see cli.infer

        jobs: list[Job] = list(islice(client.list(**_wanted(given), states=given["states"]), given["limit"]))
        if dry_run:
            for job in jobs if given["json_lines"] else ():
                say_job_json(job)
            if not given["json_lines"]:
                say_jobs(jobs)
            return 0
        if jobs and not yes and not click.confirm(f"try {len(jobs):,} jobs again?", err=True):
            return 1
        status = _each([job.id for job in jobs], client.retry, given)
        if not given["json_lines"]:
            click.echo(f"{len(jobs):,} jobs", err=True)
        return status

    ask_jobs(given, ask)


def _wanted(given: dict[str, Any]) -> dict[str, Any]:
    names = ("queue", "model", "kind", "correlation_id")
    wanted = {name: given[name] for name in names if given[name]}
    if given["tenant"] is not None:
        wanted["tenant"] = given["tenant"]
    return {**wanted, "tags": pairs(given["tags"], "--tag")}


def _each(job_ids: Any, do: Any, given: dict[str, Any], *, said: str = "") -> int:
    """Do it to each, also after one for which it could not be done; 1 where there was such a one."""
    status = 0
    for job_id in job_ids:
        try:
            job: Job | None = do(job_id)
        except HeadraceError as error:
            sys.stdout.flush()
            status = say_error(error, json_lines=given["json_lines"])
            continue
        state = said or ("" if job is None else _state(job))
        line: Any = (
            orjson.dumps({"id": job_id, "state": state}) if given["json_lines"] else f"{job_id}  {state}"
        )
        click.echo(line)
    return status


def _state(job: Job) -> str:
    return "to be cancelled" if job.cancel_requested and not job.state.ended else job.state.value
