"""``headrace schedules``: show and change the schedules of jobs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.table import Table

from headrace.cli.commands import (
    JOB_SERVER_OPTIONS,
    DefaultListGroup,
    examples,
    print_each,
    read_settings_file,
    run_job_command,
)
from headrace.cli.job_display import print_submitted
from headrace.cli.options import parse_json
from headrace.cli.responses import plain_table, print_documents, printable
from headrace.cli.submit import job_fields, submit_command

_EPILOG = """\b
Examples:
  Score the objects of each day at two at night:
    headrace schedules set nightly --cron "0 2 * * *" --time-zone Europe/Berlin \\
        --model churn s3://bucket/{time:%Y-%m-%d}.csv --output-uri s3://bucket/scored/ \\
        --key '{time:%Y-%m-%d}'
  List the schedules; show one with its next times:
    headrace schedules
    headrace schedules show nightly
  List the jobs of a schedule, or submit one now:
    headrace jobs list --tag schedule=nightly
    headrace schedules run nightly
  Stop and continue; delete a schedule, while its jobs stay:
    headrace schedules pause nightly
    headrace schedules resume nightly
    headrace schedules delete nightly
  Copy a schedule, for a script:
    headrace schedules show nightly --json | jq .settings > nightly.json
    headrace schedules set nightly-2 --file nightly.json
"""
_COLUMNS = ("schedule", "cron", "time zone", "next", "last job", "last error")
_NOT_SCHEDULED = ("payload", "wait", "output", "idempotency_key", "batch", "all_or_nothing", "after")
_JOB_PARAMETERS = [each for each in submit_command.params if each.name not in _NOT_SCHEDULED]
"""The parameters of `headrace submit` that describe a job, and those of the server."""
_TENANT = click.option("--tenant", help="Tenant of the schedule, for operators.  [default: that of the key]")


@click.group("schedules", cls=DefaultListGroup, epilog=_EPILOG)
def schedules_command() -> None:
    """List and change schedules, which submit a job at the times of a cron expression."""


@schedules_command.command("list", epilog=examples("headrace schedules list --json"))
@_TENANT
@JOB_SERVER_OPTIONS
def list_command(**params: Any) -> None:
    """List the schedules that the key may see. The default of `headrace schedules`."""
    run_job_command(params, lambda client: _print(client.schedules(tenant=params["tenant"]), params))


@schedules_command.command("show", epilog=examples("headrace schedules show nightly"))
@click.argument("schedule")
@_TENANT
@JOB_SERVER_OPTIONS
def show_command(schedule: str, **params: Any) -> None:
    """Show the settings, the last run and the next times of SCHEDULE."""

    def call(client: Any) -> None:
        found = client.schedule(schedule, tenant=params["tenant"])
        if params["json_lines"]:
            click.echo(orjson.dumps(found))
            return
        rest = {name: value for name, value in found.items() if name not in ("settings", "next_times")}
        times = "\n                   ".join(found["next_times"])
        for name, value in {**rest, **found["settings"], "next_times": times}.items():
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            click.echo(f"{click.style(f'{name:<17}', bold=True)}  {printable(text)}")

    run_job_command(params, call)


@schedules_command.command(
    "set",
    epilog=examples(
        'headrace schedules set hourly --cron "0 * * * *" -m churn s3://bucket/rows.csv',
        "headrace schedules set nightly --file nightly.json",
    ),
)
@click.argument("schedule")
@click.argument("payload", required=False)
@click.option(
    "--cron", metavar="FIELDS", help="Minute, hour, day of the month, month and day of the week, in quotes."
)
@click.option("--time-zone", metavar="NAME", help="Time zone of the IANA database.  [default: UTC]")
@click.option(
    "--overlap",
    type=click.Choice(("allow", "skip")),
    help="skip: no new job while the last one has not ended.  [default: allow]",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSON or TOML with the keys cron, time_zone, overlap and job, in place of other options.",
)
def set_command(schedule: str, file: Path | None, **params: Any) -> None:
    """Create SCHEDULE, or replace all its settings. PAYLOAD is the URI of an object.

    The options of the job are those of `headrace submit`. {time:%Y-%m-%d} in its URIs, key, options
    and tags is replaced by the time of the run. A paused schedule stays paused.
    """
    given = {name: params[name] for name in ("cron", "time_zone", "overlap") if params[name] is not None}
    job = _job_of(params)
    if file is not None and (given or job):
        raise click.UsageError("--file has all settings: leave out the other options")
    if file is None and "cron" not in given:
        raise click.UsageError("give --cron and the options of the job, or --file")

    def call(client: Any) -> None:
        settings = {**given, "job": job} if file is None else read_settings_file(file, "a schedule")
        _print([client.set_schedule(schedule, **settings)], params)

    run_job_command(params, call)


set_command.params += _JOB_PARAMETERS


@schedules_command.command("delete", epilog=examples("headrace schedules delete nightly"))
@click.argument("schedules", nargs=-1, required=True, metavar="SCHEDULE...")
@_TENANT
@JOB_SERVER_OPTIONS
def delete_command(schedules: tuple[str, ...], **params: Any) -> None:
    """Delete schedules. Their jobs stay."""

    def call(client: Any) -> int:
        def delete(name: str) -> tuple[str, dict[str, Any]]:
            client.delete_schedule(name, tenant=params["tenant"])
            return "deleted", {"schedule": name, "deleted": True}

        return print_each(schedules, delete, params)

    run_job_command(params, call)


@schedules_command.command("pause", epilog=examples("headrace schedules pause nightly"))
@click.argument("schedules", nargs=-1, required=True, metavar="SCHEDULE...")
@_TENANT
@JOB_SERVER_OPTIONS
def pause_command(schedules: tuple[str, ...], **params: Any) -> None:
    """Submit no jobs of schedules until they are resumed."""
    _change(schedules, params, "pause_schedule", "paused")


@schedules_command.command("resume", epilog=examples("headrace schedules resume nightly"))
@click.argument("schedules", nargs=-1, required=True, metavar="SCHEDULE...")
@_TENANT
@JOB_SERVER_OPTIONS
def resume_command(schedules: tuple[str, ...], **params: Any) -> None:
    """Submit jobs of schedules again, from their first time after now."""
    _change(schedules, params, "resume_schedule", "resumed")


@schedules_command.command("run", epilog=examples("headrace schedules run nightly"))
@click.argument("schedule")
@JOB_SERVER_OPTIONS
def run_command(schedule: str, **params: Any) -> None:
    """Submit the job of SCHEDULE now, and print its id. The schedule keeps its next time."""

    def call(client: Any) -> None:
        print_submitted(client.run_schedule(schedule), json_lines=params["json_lines"])

    run_job_command(params, call)


def _change(schedules: Sequence[str], params: dict[str, Any], method: str, done: str) -> None:
    def call(client: Any) -> int:
        def change(name: str) -> tuple[str, dict[str, Any]]:
            return done, getattr(client, method)(name, tenant=params["tenant"])

        return print_each(schedules, change, params)

    run_job_command(params, call)


def _job_of(params: dict[str, Any]) -> dict[str, Any]:
    """Return the submission that the options describe."""
    job = job_fields(params)
    if params["model"]:
        job["model"] = params["model"]
    payload, text = params["payload"], params["inline_input"]
    if payload is not None:
        if "://" not in payload:
            raise click.UsageError("PAYLOAD must be a URI: a schedule reads its input at each run")
        job["input_uri"] = payload
    if text is not None:
        job["input"] = parse_json(text, "--input")
    return job


def _print(schedules: Sequence[dict[str, Any]], params: dict[str, Any]) -> None:
    none = "no schedules: create one with headrace schedules set NAME --cron FIELDS"
    print_documents(schedules, params, _schedule_table, none=none)


def _schedule_table(schedules: Sequence[dict[str, Any]]) -> Table:
    # Only operators see the schedules of several tenants.
    by_tenant = len({schedule["tenant"] for schedule in schedules}) > 1
    table = plain_table(*(("tenant",) if by_tenant else ()), *_COLUMNS)
    for schedule in schedules:
        settings = schedule["settings"]
        table.add_row(
            *((printable(schedule["tenant"]) or "-",) if by_tenant else ()),
            schedule["name"],
            printable(settings["cron"]),
            settings["time_zone"],
            "paused" if schedule["paused"] else next(iter(schedule["next_times"]), "-"),
            schedule["last_job_id"] or "-",
            printable(schedule["last_error"]) or "-",
        )
    return table
